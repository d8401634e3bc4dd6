"""The results of one run of a comparison."""

from dataclasses import dataclass

from megatape.study.result import Result


@dataclass(frozen=True)
class Outcome(Result):
    """Results of a trained model.

    Attributes:
        scaling: Kind of model.scaling in the evaluation, or None.
        figures: Metrics by name, the columns of the table.
        losses: Mean training loss (nats) of equal parts of the run, by the last step of each.
        curve: A metric by length in tokens or digits.
        axes: Names of length and metric.
    """

    scaling: str | None
    figures: dict[str, float]
    losses: dict[int, float]
    curve: dict[int, float]
    axes: tuple[str, str]

    @property
    def seed(self) -> int:
        """training.seed of the run."""
        return self.config.training.seed

    @property
    def summary(self) -> str:
        """The metrics in one line."""
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        return f"{self.scaling}: {metrics}" if self.scaling else metrics
