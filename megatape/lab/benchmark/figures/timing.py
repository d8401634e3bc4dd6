"""Times actions in rounds. Each runs once per round, so changes in the machine's speed affect all of them alike."""

import math
import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from megatape.utils.pytorch.recorder import WARM_UP_RUNS, CudaRecorder, Replay

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """Median, first quartile (low) and third quartile (high) over rounds."""

    median: float
    low: float
    high: float


def spread(values: list[float]) -> Spread:
    """Return the median and quartiles of the values, which must not be empty."""
    median, low, high = np.quantile(values, (0.5, 0.25, 0.75)).tolist()
    return Spread(median, low, high)


def ratio(seconds: list[float], base: list[float]) -> Spread:
    """Return the spread of the ratios seconds / base, each of one round."""
    return spread([value / base_value for value, base_value in zip(seconds, base, strict=True)])


class Comparison(NamedTuple):
    """Median seconds of an action, and its median ratio to a baseline in the same round."""

    seconds: float
    ratio: float


@dataclass(frozen=True)
class Timer:
    """Times actions on a device.

    Attributes:
        device: Device to run on.
        rounds: Timed rounds, following an untimed warm-up round.
        at_least: Minimum seconds per action and round. Faster actions are repeated, keeping a GPU's queue full.
        clock: Clock on a CPU. A GPU is timed by CUDA events.
    """

    device: torch.device
    rounds: int
    at_least: float = 0.0
    clock: Callable[[], float] = time.perf_counter

    def times(self, actions: dict[Name, Callable[[], object]]) -> dict[Name, list[float]]:
        """Return each action's seconds per call, for every round."""
        counts = {name: self._count(action) for name, action in actions.items()}
        seconds: dict[Name, list[float]] = {name: [] for name in actions}
        for number in range(self.rounds + 1):
            for name, action in actions.items():
                duration = self.seconds(action, counts[name])
                # Round 0 warms up.
                if number > 0:
                    seconds[name].append(duration)
        return seconds

    def median(self, action: Callable[[], object]) -> float:
        """Return an action's median seconds."""
        return statistics.median(self.times({"action": action})["action"])

    def compare(self, action: Callable[[], object], baseline: Callable[[], object]) -> Comparison:
        """Time an action and a baseline in the same rounds."""
        seconds = self.times({"action": action, "baseline": baseline})
        over_baseline = ratio(seconds["action"], seconds["baseline"])
        return Comparison(statistics.median(seconds["action"]), over_baseline.median)

    def seconds(self, action: Callable[[], object], count: int = 1) -> float:
        """Return the mean seconds over `count` calls."""
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
        """Return how often to call an action to spend `at_least` seconds."""
        if not self.at_least:
            return 1
        # The first call compiles and allocates.
        action()
        return max(1, math.ceil(self.at_least / self.seconds(action)))


def captured(action: Callable[[], object]) -> Replay:
    """Capture an action as a CUDA graph. Its replay, the result, spends no time on launching kernels."""
    recorder = CudaRecorder()
    for _ in range(WARM_UP_RUNS):
        recorder.warm_up(action)
    return recorder.record(action)


def _repeat(action: Callable[[], object], count: int) -> None:
    for _ in range(count):
        action()


def default_device() -> torch.device:
    """Return the GPU, or the CPU if there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu")


def describe_device(device: torch.device) -> str:
    """Return a GPU's name, or a CPU's thread count."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"a CPU, {torch.get_num_threads()} threads"
