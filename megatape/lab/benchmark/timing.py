"""Times of actions side by side, in rounds, so that a change of the machine's speed affects all of them alike."""

import math
import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

Name = TypeVar("Name", bound=Hashable)

CAPTURE_AFTER = 3  # runs, in which libraries allocate and choose kernels


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over rounds."""

    median: float
    low: float
    high: float


def spread(values: list[float]) -> Spread:
    """Median and quartiles of at least one value."""
    return Spread(*np.quantile(values, (0.5, 0.25, 0.75)).tolist())


def ratio(seconds: list[float], base: list[float]) -> Spread:
    """Spread of the ratio to `base` in the same round."""
    return spread([own / other for own, other in zip(seconds, base, strict=True)])


@dataclass(frozen=True)
class Timer:
    """Times actions on a device.

    Attributes:
        device: device that the actions run on.
        rounds: number of timed rounds. A round runs each action once; a first, untimed round warms up.
        at_least: seconds for which an action is repeated in a round, so that a GPU's queue is full. 0: no repetition.
        clock: clock of a CPU. On a GPU, events on its stream are timed.
    """

    device: torch.device
    rounds: int
    at_least: float = 0.0
    clock: Callable[[], float] = time.perf_counter

    def times(self, actions: dict[Name, Callable[[], object]]) -> dict[Name, list[float]]:
        """Seconds of each action in every round."""
        counts = {name: self._count(action) for name, action in actions.items()}
        seconds: dict[Name, list[float]] = {name: [] for name in actions}
        for number in range(self.rounds + 1):
            for name, action in actions.items():
                taken = self.seconds(action, counts[name])
                if number:
                    seconds[name].append(taken)
        return seconds

    def median(self, action: Callable[[], object]) -> float:
        """Median seconds of an action."""
        return statistics.median(self.times({"action": action})["action"])

    def compare(self, action: Callable[[], object], baseline: Callable[[], object]) -> tuple[float, float]:
        """Median seconds of an action, and the median of its ratio to a baseline in the same round."""
        own, base = self.times(dict(enumerate((action, baseline)))).values()
        return statistics.median(own), ratio(own, base).median

    def seconds(self, action: Callable[[], object], count: int = 1) -> float:
        """Mean seconds of `count` calls of an action."""
        if self.device.type != "cuda":
            started = self.clock()
            _repeat(action, count)
            return (self.clock() - started) / count
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self.device)
        first.record()
        _repeat(action, count)
        last.record()
        torch.cuda.synchronize(self.device)
        return first.elapsed_time(last) / 1e3 / count

    def _count(self, action: Callable[[], object]) -> int:
        if not self.at_least:
            return 1
        action()  # compiles, allocates
        return max(1, math.ceil(self.at_least / self.seconds(action)))


def captured(action: Callable[[], object]) -> Callable[[], None]:
    """The replay of what an action launches, as a CUDA graph: a GPU's time, without that of launching each kernel."""
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _repeat(action, CAPTURE_AFTER)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        action()
    return graph.replay


def _repeat(action: Callable[[], object], count: int) -> None:
    for _ in range(count):
        action()
