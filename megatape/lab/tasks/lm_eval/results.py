"""Results of lm-eval's tasks and groups."""

import math
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from megatape.lab.pictures import bars
from megatape.lab.tasks.engine.result import Interval, Measure, wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Metrics that are shares.
PERCENT = ("acc", "acc_norm", "exact_match")


@dataclass(frozen=True)
class LmEvalScores:
    """Results of all tasks and groups.

    Attributes:
        metrics: Task or group -> "acc,none", "acc_stderr,none" and so on -> value.
        shown: Tasks and groups that a table shows.
    """

    metrics: dict[str, dict[str, Any]]
    shown: list[str]

    @property
    def summary(self) -> str:
        """One line with every measure."""
        parts = [f"{measure.name} {measure.value:.4g}" for measure in self.measures]
        return f"lm-eval: {', '.join(parts)}"

    @property
    def measures(self) -> list[Measure]:
        """Every metric of the shown tasks and groups, with lm-eval's standard errors."""
        measures = []
        for task in self.shown:
            values = self.metrics[task]
            for key, value in values.items():
                metric, _, kind = key.partition(",")
                is_metric = bool(kind) and not metric.endswith("_stderr")
                if is_metric and isinstance(value, int | float):
                    error = values.get(f"{metric}_stderr,{kind}")
                    if not isinstance(error, int | float):
                        error = None
                    measures.append(_measure(task, metric, kind, value, error, values["sample_len"]))
        return measures

    def draw(self, figure: "Figure") -> None:
        """Draw a bar for each measure that is a share."""
        shares = {}
        for measure in self.measures:
            if measure.name.endswith("(%)"):
                shares[measure.name] = (measure.value, measure.error)
        bars(figure, shares, "%")

    def describe(self) -> dict[str, Any]:
        """Return all metrics of all tasks and groups, and the version of lm-eval."""
        return {"lm_eval": version("lm_eval"), "tasks": self.metrics}


def _measure(task: str, metric: str, kind: str, value: float, error: float | None, n: int) -> Measure:
    """Return a metric as a measure, shares in percent.

    Args:
        task: Name of the task or group.
        metric: Name of the metric.
        kind: Filter of the answers, "none" without one.
        value: Value of the metric.
        error: Its standard error.
        n: Number of documents.
    """
    label = f"{task} {metric}"
    if kind != "none":
        label += f" {kind}"
    if metric not in PERCENT:
        return Measure(label, value, error, n)
    interval = _interval(value, error, n)
    if error is not None:
        error = 100 * error
    return Measure(f"{label} (%)", 100 * value, error, n, interval)


def _interval(share: float, error: float | None, n: int) -> Interval | None:
    """Return Wilson's interval in percent, or None unless the standard error is that of a share of `n` documents."""
    if error is None:
        return None
    binomial = math.sqrt(share * (1 - share) / max(1, n - 1))
    if not math.isclose(error, binomial, rel_tol=1e-6, abs_tol=1e-9):
        return None
    return wilson(share, n)
