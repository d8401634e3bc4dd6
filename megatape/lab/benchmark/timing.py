"""Times of actions side by side, in rounds, so that changes of the machine's speed affect all of them alike."""

import math
import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

Name = TypeVar("Name", bound=Hashable)

# Number of runs before a CUDA graph is captured. Libraries allocate memory and choose kernels in them.
NUM_WARM_UP_RUNS = 3


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over rounds.

    Attributes:
        median: Median.
        low: First quartile.
        high: Third quartile.
    """

    median: float
    low: float
    high: float


def spread(values: list[float]) -> Spread:
    """Return the median and the quartiles of at least one value."""
    median, low, high = np.quantile(values, (0.5, 0.25, 0.75)).tolist()
    return Spread(median, low, high)


def ratio(seconds: list[float], base: list[float]) -> Spread:
    """Return the spread of the ratios to `base` in the same round."""
    return spread([own / other for own, other in zip(seconds, base, strict=True)])


@dataclass(frozen=True)
class Timer:
    """Times actions on a device.

    Attributes:
        device: Device that the actions run on.
        rounds: Number of timed rounds. A round runs each action once. The first, untimed round warms up.
        at_least: Minimum seconds of an action in a round. Faster actions are repeated, so that the queue of a GPU is full.
        clock: Clock of a CPU. On a GPU, events on its stream are timed.
    """

    device: torch.device
    rounds: int
    at_least: float = 0.0
    clock: Callable[[], float] = time.perf_counter

    def times(self, actions: dict[Name, Callable[[], object]]) -> dict[Name, list[float]]:
        """Return the seconds of each action in every round."""
        counts = {name: self._count(action) for name, action in actions.items()}
        seconds: dict[Name, list[float]] = {name: [] for name in actions}
        for number in range(self.rounds + 1):
            for name, action in actions.items():
                taken = self.seconds(action, counts[name])
                if number:
                    seconds[name].append(taken)
        return seconds

    def median(self, action: Callable[[], object]) -> float:
        """Return the median seconds of an action."""
        return statistics.median(self.times({"action": action})["action"])

    def compare(self, action: Callable[[], object], baseline: Callable[[], object]) -> tuple[float, float]:
        """Return the median seconds of an action, and the median of its ratio to a baseline in the same round."""
        seconds = self.times({"action": action, "baseline": baseline})
        return statistics.median(seconds["action"]), ratio(seconds["action"], seconds["baseline"]).median

    def seconds(self, action: Callable[[], object], count: int = 1) -> float:
        """Return the mean seconds of `count` calls of an action."""
        if self.device.type != "cuda":
            started = self.clock()
            _repeat(action, count)
            return (self.clock() - started) / count
        first = torch.cuda.Event(enable_timing=True)
        last = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(self.device)
        first.record()
        _repeat(action, count)
        last.record()
        torch.cuda.synchronize(self.device)
        return first.elapsed_time(last) / 1e3 / count

    def _count(self, action: Callable[[], object]) -> int:
        """Return the number of calls that take `at_least` seconds."""
        if not self.at_least:
            return 1
        # The first call compiles and allocates.
        action()
        return max(1, math.ceil(self.at_least / self.seconds(action)))


def captured(action: Callable[[], object]) -> Callable[[], None]:
    """Capture an action as a CUDA graph, and return its replay: the time of the GPU, without launching each kernel."""
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _repeat(action, NUM_WARM_UP_RUNS)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        action()
    return graph.replay


def _repeat(action: Callable[[], object], count: int) -> None:
    for _ in range(count):
        action()


def describe_device(device: torch.device) -> str:
    """Return the name of a GPU, or the number of threads that a CPU computes with."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"a CPU, {torch.get_num_threads()} threads"
