"""State of a learning-rate search."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RateSearch:
    """Learning rates for a task and an encoding, with the search results so far.

    Attributes:
        rates: Learning rates to search. A single rate needs no search.
        losses: Validation loss of each finished run, by learning rate.
        diverged: Learning rates whose run diverged.
    """

    rates: tuple[float, ...]
    losses: dict[float, float]
    diverged: tuple[float, ...]

    @property
    def chosen(self) -> float | None:
        """Learning rate with the lowest validation loss. None while the search is incomplete, or if all rates diverged."""
        if len(self.rates) == 1:
            return self.rates[0]
        is_complete = len(self.losses) + len(self.diverged) == len(self.rates)
        if not self.losses or not is_complete:
            return None
        # Ties go to the smaller rate.
        return min(self.losses, key=lambda rate: (self.losses[rate], rate))

    @property
    def to_run(self) -> list[float]:
        """Learning rates to train with in the search: all that have not diverged, none for a single rate."""
        if len(self.rates) == 1:
            return []
        return [rate for rate in self.rates if rate not in self.diverged]
