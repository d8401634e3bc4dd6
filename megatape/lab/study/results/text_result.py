"""Measurements of a model on text or addition problems."""

from dataclasses import dataclass
from typing import NamedTuple

from megatape.data.training.selection import EARLIER_SELECTION, Selection
from megatape.lab.study.execution.result import Result

# Name of the figure for all validation samples. Names of the figures for parts of the data begin with it.
VALIDATION_LOSS = "validation loss"
# Beginning of the names of perplexities. The length in tokens follows.
PERPLEXITY = "perplexity at "


class Evaluation(NamedTuple):
    """Results of the tests of a trained model.

    Attributes:
        figures: Metrics by name.
        curve: A metric by length in tokens or digits.
        axes: Names of the length and of the metric.
    """

    figures: dict[str, float]
    curve: dict[int, float]
    axes: tuple[str, str]


@dataclass(frozen=True)
class Outcome(Result):
    """Measurements of a model in a comparison of encodings or of methods.

    Attributes:
        scaling: Kind of model.scaling in the evaluation, or None.
        figures: Metrics by name. Each is a column of the table.
        losses: Mean training loss (nats) of equal parts of the run, by the last step of each part.
        curve: A metric by length in tokens or digits.
        axes: Names of the length and of the metric.
        selection: Selection of the validation text for loss and perplexity.
    """

    scaling: str | None
    figures: dict[str, float]
    losses: dict[int, float]
    curve: dict[int, float]
    axes: tuple[str, str]
    selection: Selection = EARLIER_SELECTION

    @property
    def seed(self) -> int:
        """training.seed of the run."""
        return self.config.training.seed

    @property
    def summary(self) -> str:
        """The metrics in one line."""
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        if self.scaling is None:
            return metrics
        return f"{self.scaling}: {metrics}"
