"""Times of actions side by side, each repeated until a GPU's queue is full."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from megatape.benchmark.child import Bench
from megatape.study.timing import Name, interleaved, spread, timed


@dataclass(frozen=True)
class Clock:
    """rounds: in which every action runs, one after the other. at_least: seconds that it is repeated for in a round."""

    device: torch.device
    rounds: int
    at_least: float

    def times(self, actions: dict[Name, Callable[[], object]]) -> dict[Name, list[float]]:
        """Seconds of each action in every round."""
        counts = {}
        for name, action in actions.items():
            action()  # compiles, allocates
            counts[name] = max(1, math.ceil(self.at_least / timed(action, self.device)))
        repeated: dict[Name, Callable[[], object]] = {name: _repeated(action, counts[name]) for name, action in actions.items()}
        seconds = interleaved(repeated, self.rounds, self.device)
        return {name: [taken / counts[name] for taken in rounds] for name, rounds in seconds.items()}


def clock_of(bench: Bench) -> Clock:
    """The clock of a benchmark."""
    return Clock(torch.device(bench.device), 1, 0.0) if bench.tiny else Clock(torch.device(bench.device), 5, 0.05)


def median(seconds: list[float]) -> float:
    """The median over rounds."""
    return spread(seconds).median


def ratio(own: list[float], base: list[float]) -> float:
    """The median over rounds of the ratio in the same round."""
    return spread([mine / theirs for mine, theirs in zip(own, base, strict=True)]).median


def _repeated(action: Callable[[], object], count: int) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(count):
            action()

    return repeat
