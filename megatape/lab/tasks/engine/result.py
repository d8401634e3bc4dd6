"""Interface of task results, and the measures compared between models."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIDENCE = 0.95
Interval = tuple[float, float]
# Values published in papers: row label -> measure name -> value.
PublishedRows = dict[str, dict[str, float]]


def wilson(share: float, trials: float) -> Interval:
    """Return Wilson's score interval (1927) in %. Its width is positive even at 0% and 100%.

    Args:
        share: Share of successes among independent trials, 0 to 1.
        trials: Number of trials. For a mean of shares, the number of trials having the same variance.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low = 100 * (middle - half) if share > 0 else 0.0
    high = 100 * (middle + half) if share < 1 else 100.0
    return low, high


@dataclass(frozen=True)
class Measure:
    """A number compared between models.

    Attributes:
        name: Column name in tables, including unit and text length.
        value: The number.
        error: Standard error, None if unknown.
        n: Number of averaged answers or tokens.
        interval: 95% interval of a proportion. Tables show it instead of the error.
    """

    name: str
    value: float
    error: float | None
    n: int
    interval: Interval | None = None


class TaskScores(Protocol):
    """Results of a task on one model."""

    @property
    def summary(self) -> str:
        """One line for the console."""

    @property
    def measures(self) -> list[Measure]:
        """Numbers compared between models."""

    def describe(self) -> dict[str, Any]:
        """Return all results in JSON values."""

    def draw(self, figure: "Figure") -> None:
        """Draw the results. See megatape/lab/pictures.py for common charts."""
