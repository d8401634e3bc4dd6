"""State of the search of a learning rate."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RateSearch:
    """Learning rates of a task and an encoding, and the results of the search so far.

    Attributes:
        rates: Learning rates to search. A single rate is used without a search.
        losses: Validation loss of each finished run, by learning rate.
        diverged: Learning rates whose run diverged.
    """

    rates: tuple[float, ...]
    losses: dict[float, float]
    diverged: tuple[float, ...]

    @property
    def chosen(self) -> float | None:
        """The learning rate with the lowest validation loss. None if the search is not complete or all rates diverged."""
        if len(self.rates) == 1:
            return self.rates[0]
        is_complete = len(self.losses) + len(self.diverged) == len(self.rates)
        if not self.losses or not is_complete:
            return None
        # The smaller of two rates with the same loss.
        return min(self.losses, key=lambda rate: (self.losses[rate], rate))

    @property
    def to_run(self) -> list[float]:
        """Learning rates whose runs belong to the search: all that have not diverged, none for a single rate."""
        if len(self.rates) == 1:
            return []
        return [rate for rate in self.rates if rate not in self.diverged]
