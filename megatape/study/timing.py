"""Seconds of several things measured side by side, in rounds, so that a change of the machine's speed hits all of them alike."""

import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of what rounds gave."""

    median: float
    low: float
    high: float


def spread(values: list[float]) -> Spread:
    """Of at least one value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def interleaved(actions: dict[Name, Callable[[], object]], rounds: int, device: torch.device) -> dict[Name, list[float]]:
    """Seconds of every action in every round. A round runs all of them, one after the other; one more comes before, to warm up."""
    seconds: dict[Name, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 1):
        for name, action in actions.items():
            taken = timed(action, device)
            if number:
                seconds[name].append(taken)
    return seconds


def timed(action: Callable[[], object], device: torch.device) -> float:
    """Seconds until the work of the action is done: on a GPU between two events on its stream, elsewhere by the clock."""
    if device.type != "cuda":
        started = time.perf_counter()
        action()
        return time.perf_counter() - started
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    action()
    last.record()
    torch.cuda.synchronize(device)
    return first.elapsed_time(last) / 1e3
