"""Results of evaluation tasks: measures, their intervals, and the interface of a task's results."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIDENCE = 0.95
Interval = tuple[float, float]


def wilson(share: float, trials: float) -> Interval:
    """Return Wilson's score interval (1927) in %. It has a width at 0% and 100%, too.

    Args:
        share: Share of successful independent trials, from 0 to 1.
        trials: Number of trials. For a mean of shares, the number of trials whose share would vary as much.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low = 0.0
    if share > 0:
        low = 100 * (middle - half)
    high = 100.0
    if share < 1:
        high = 100 * (middle + half)
    return low, high


@dataclass(frozen=True)
class Measure:
    """A number of the results.

    Attributes:
        name: Name of its column in the table, with unit and length of the texts.
        value: Value of the measure.
        error: Standard error, None if it is unknown.
        n: Number of answers or tokens that the value averages.
        interval: 95% interval of a proportion. Tables show it instead of the error.
    """

    name: str
    value: float
    error: float | None
    n: int
    interval: Interval | None = None


class Result(Protocol):
    """Results of an evaluation."""

    @property
    def summary(self) -> str:
        """One line for the console."""

    @property
    def measures(self) -> list[Measure]:
        """Numbers for comparing models."""

    def describe(self) -> dict[str, Any]:
        """Return all results, for a JSON file."""

    def draw(self, figure: "Figure") -> None:
        """Draw the results. megatape/lab/pictures.py has the common kinds of charts."""
