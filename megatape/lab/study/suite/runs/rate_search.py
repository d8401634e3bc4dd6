"""Search of the learning rate for a task and an encoding, and its state."""

from collections.abc import Iterator
from dataclasses import dataclass

# Seeds of the search's runs, which are never tested: the reported runs use seeds 1, 2, ...
FIRST_TUNING_SEED = 0
OTHER_TUNING_SEEDS = 10_000
# Largest number of rates that a search adds at each end.
MAX_EXTENSIONS = 4
# First digits of added rates.
DIGITS = (1, 3)


def tuning_seeds(count: int) -> tuple[int, ...]:
    """Return the seeds of a search with this number of runs for each rate."""
    others = [OTHER_TUNING_SEEDS + index for index in range(count - 1)]
    return (FIRST_TUNING_SEED, *others)


@dataclass(frozen=True)
class RateGrid:
    """Learning rates of a search, and what it may add.

    Attributes:
        rates: Planned learning rates. A single rate needs no search.
        seeds: Number of runs for each rate, with different seeds.
        extends: Whether the search tries rates beyond these until the best one has a neighbor on both sides.
    """

    rates: tuple[float, ...]
    seeds: int
    extends: bool

    @property
    def is_searched(self) -> bool:
        """Whether there is more than one rate."""
        return len(self.rates) > 1

    @property
    def candidates(self) -> list[float]:
        """Every rate that the search may try, in order: the planned ones, and those that it may add."""
        planned = sorted(self.rates)
        if not self.extends or not self.is_searched:
            return planned
        return [*reversed(list(_below(planned[0]))), *planned, *_above(planned[-1])]


@dataclass(frozen=True)
class RateSearch:
    """State of a search.

    Attributes:
        grid: Learning rates to search.
        losses: Validation losses of the finished runs, by rate and seed.
        diverged: Rates with a diverged run.
    """

    grid: RateGrid
    losses: dict[float, dict[int, float]]
    diverged: tuple[float, ...]

    @property
    def rates(self) -> list[float]:
        """Rates to try, in order. While a rate at the end is the best one, the next rate beyond it is among them."""
        candidates = self.grid.candidates
        first = candidates.index(min(self.grid.rates))
        last = candidates.index(max(self.grid.rates))
        while True:
            tried = candidates[first : last + 1]
            best = self._best(tried)
            if best is not None and best == tried[0] and first > 0:
                first -= 1
            elif best is not None and best == tried[-1] and last + 1 < len(candidates):
                last += 1
            else:
                return tried

    @property
    def chosen(self) -> float | None:
        """Rate with the lowest mean validation loss. None while the search is incomplete, or if all rates diverged."""
        if not self.grid.is_searched:
            return self.grid.rates[0]
        return self._best(self.rates)

    @property
    def is_bracketed(self) -> bool:
        """Whether the chosen rate has a neighbor on both sides, or was not searched."""
        if not self.grid.is_searched:
            return True
        return self.chosen is not None and self.chosen not in (self.rates[0], self.rates[-1])

    @property
    def to_run(self) -> list[tuple[float, int]]:
        """Rates and seeds to train with: all rates that have not diverged, none for a single rate."""
        if not self.grid.is_searched:
            return []
        runs = []
        for rate in self.rates:
            if rate not in self.diverged:
                runs += [(rate, seed) for seed in tuning_seeds(self.grid.seeds)]
        return runs

    def _best(self, rates: list[float]) -> float | None:
        """Return the best of these rates, or None if a run is missing or all diverged. Ties go to the smaller rate."""
        means = {}
        for rate in rates:
            if rate in self.diverged:
                continue
            losses = self.losses.get(rate, {})
            if len(losses) < self.grid.seeds:
                return None
            means[rate] = sum(losses.values()) / len(losses)
        if not means:
            return None
        return min(means, key=lambda rate: (means[rate], rate))


def _above(rate: float) -> Iterator[float]:
    """Yield the next rates above this one, all below 1."""
    added = [value for value in _series() if value > rate]
    yield from added[:MAX_EXTENSIONS]


def _below(rate: float) -> Iterator[float]:
    """Yield the next rates below this one, the largest first."""
    added = [value for value in _series() if value < rate]
    yield from reversed(added[-MAX_EXTENSIONS:])


def _series() -> Iterator[float]:
    """Yield the rates that a search may add: 1e-9, 3e-9, 1e-8, and so on, up to 0.3."""
    for exponent in range(-9, 0):
        for digit in DIGITS:
            yield float(f"{digit}e{exponent}")
