"""Times several actions side by side, in rounds, so that a change of the machine's speed affects all of them alike."""

import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over rounds."""

    median: float
    low: float
    high: float


def spread(values: list[float]) -> Spread:
    """Median and quartiles of at least one value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def interleaved(
    actions: dict[Name, Callable[[], object]],
    rounds: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, list[float]]:
    """Seconds of every action in every round. A round runs each action once; a first, untimed round warms up.

    clock: of a CPU.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 1):
        for name, action in actions.items():
            taken = timed(action, device, clock)
            if number:
                seconds[name].append(taken)
    return seconds


def timed(action: Callable[[], object], device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that an action takes: on a GPU between two events on its stream, elsewhere by the clock."""
    if device.type != "cuda":
        started = clock()
        action()
        return clock() - started
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    action()
    last.record()
    torch.cuda.synchronize(device)
    return first.elapsed_time(last) / 1e3
