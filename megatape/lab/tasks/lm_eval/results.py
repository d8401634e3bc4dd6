"""Results by lm-eval task and group."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from megatape.lab.pictures import bars
from megatape.lab.tasks.engine.result import Interval, Measure, wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Metrics that are shares, shown in percent.
PERCENT = ("acc", "acc_norm", "exact_match")


class Metric(NamedTuple):
    """A task's or group's metric, with lm-eval's standard error.

    Attributes:
        name: Metric name, such as "acc".
        filter: Answer filter, "none" without one.
        value: The number.
        error: Standard error, None if unknown.
        n: Number of documents.
    """

    name: str
    filter: str
    value: float
    error: float | None
    n: int

    def measure(self, task: str) -> Measure:
        """Return the metric as a measure, shares in percent.

        Args:
            task: Task or group name.
        """
        label = f"{task} {self.name}"
        if self.filter != "none":
            label += f" {self.filter}"
        if self.name not in PERCENT:
            return Measure(label, self.value, self.error, self.n)
        error = self.error
        if error is not None:
            error = 100 * error
        return Measure(f"{label} (%)", 100 * self.value, error, self.n, self._interval())

    def _interval(self) -> Interval | None:
        """Return Wilson's interval in percent, None unless the standard error is binomial over `n` documents."""
        if self.error is None:
            return None
        binomial = math.sqrt(self.value * (1 - self.value) / max(1, self.n - 1))
        if not math.isclose(self.error, binomial, rel_tol=1e-6, abs_tol=1e-9):
            return None
        return wilson(self.value, self.n)


def parse_metrics(values: dict[str, Any]) -> Iterator[Metric]:
    """Yield the numeric metrics in lm-eval's results for a task or group.

    Args:
        values: "acc,none", "acc_stderr,none" and so on -> value, and "sample_len" -> number of documents.
    """
    for key, value in values.items():
        name, _, answer_filter = key.partition(",")
        is_metric = bool(answer_filter) and not name.endswith("_stderr")
        if not is_metric or not isinstance(value, int | float):
            continue
        error = values.get(f"{name}_stderr,{answer_filter}")
        if not isinstance(error, int | float):
            error = None
        yield Metric(name, answer_filter, value, error, values["sample_len"])


@dataclass(frozen=True)
class LmEvalScores:
    """Results for all tasks and groups.

    Attributes:
        metrics: Task or group -> results in lm-eval's format (see `parse_metrics`).
        shown: Tasks and groups shown in tables.
    """

    metrics: dict[str, dict[str, Any]]
    shown: list[str]

    @property
    def summary(self) -> str:
        parts = [f"{measure.name} {measure.value:.4g}" for measure in self.measures]
        return f"lm-eval: {', '.join(parts)}"

    @property
    def measures(self) -> list[Measure]:
        measures = []
        for task in self.shown:
            for metric in parse_metrics(self.metrics[task]):
                measures.append(metric.measure(task))
        return measures

    def draw(self, figure: "Figure") -> None:
        """Draw a bar for each share."""
        shares = {}
        for measure in self.measures:
            if measure.name.endswith("(%)"):
                shares[measure.name] = (measure.value, measure.error)
        bars(figure, shares, "%")

    def describe(self) -> dict[str, Any]:
        """Return all metrics, and lm-eval's version."""
        return {"lm_eval": version("lm_eval"), "tasks": self.metrics}
