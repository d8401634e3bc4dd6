"""Result of a run in `compare` or `finetune`: outcome.json in its run directory."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, PlainSerializer

from megatape.data.training.selection import EARLIER_SELECTION, Selection
from megatape.lab.study.results.figures import Columns, Figures
from megatape.lab.study.results.result import RunResult
from megatape.utils.values.validation import as_type


class Axes(NamedTuple):
    """Axis labels of a metric by length."""

    length: str
    metric: str


PERPLEXITY_AXES = Axes("tokens", "perplexity")
ADDITION_AXES = Axes("digits of the longer operand", "exact match (%)")


class Evaluation(NamedTuple):
    """Test results of a trained model.

    Attributes:
        figures: Figures measured by the tests.
        curve: A metric by length in tokens or digits.
        axes: Labels of length and metric.
    """

    figures: Figures
    curve: dict[int, float]
    axes: Axes


def _read_figures(value: object) -> object:
    """Return the figures in the columns of a file."""
    if isinstance(value, Figures):
        return value
    return Figures.of_columns(as_type(value, Columns))


@dataclass(frozen=True)
class TextResult(RunResult):
    """Measurements of a model on text or addition problems.

    Attributes:
        scaling: Kind of model.scaling in the evaluation, or None.
        figures: Figures, which the file keeps as values by column title.
        losses: Mean training loss (nats) in equal parts of the run, by last step of a part.
        curve: A metric by length in tokens or digits.
        axes: Labels of length and metric.
        selection: Rule by which validation text was selected for loss and perplexity.
    """

    scaling: str | None
    figures: Annotated[Figures, BeforeValidator(_read_figures), PlainSerializer(Figures.columns, return_type=Columns)]
    losses: dict[int, float]
    curve: dict[int, float]
    axes: Axes
    selection: Selection = EARLIER_SELECTION

    @property
    def seed(self) -> int:
        """training.seed of the run."""
        return self.config.training.seed

    @property
    def summary(self) -> str:
        """The figures in one line."""
        figures = ", ".join(f"{title} {value:.4g}" for title, value in self.figures.columns().items())
        if self.scaling is None:
            return figures
        return f"{self.scaling}: {figures}"
