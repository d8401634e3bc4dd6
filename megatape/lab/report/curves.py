"""Charts that charts.js draws, and those of curves over steps: every run, or the mean of runs that differ only in their seed.

Numbers that are not finite are None.
"""

import json
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from megatape.lab.report.load import Run

MAX_POINTS = 1000  # points of a curve; longer runs are averaged over neighbouring steps
MAX_TIMES = 200  # steps whose time the page knows
MAX_MARKS = 200  # events of all runs on a chart, the last ones
UNMARKED = ("started", "checkpoint", "finished")


@dataclass
class Series:
    """A line, and the band around it.

    Attributes:
        group: Number of its label on the page.
        style: "line" or "points".
        x: Of the points.
        y: Of the points.
        low: Lower edge of the band at each point.
        high: Upper edge of the band at each point.
    """

    group: int
    style: str = "line"
    x: list[float | None] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)

    def add(self, x: float, y: float, low: float, high: float) -> None:
        """Add a point."""
        for values, value in zip((self.x, self.y, self.low, self.high), (x, y, low, high), strict=True):
            values.append(rounded(value))


@dataclass(frozen=True)
class Chart:
    """A chart over steps, lengths or distances.

    Attributes:
        title: Above it.
        unit: Of the vertical axis.
        axis: Name of the horizontal axis, which begins at 0.
        last: End of the horizontal axis.
        series: Its lines.
        span: Values that the vertical axis includes.
        log: Whether the vertical axis is logarithmic.
        wide: Whether it is as wide as the page.
        lines: Label and y of each horizontal line.
        noisy: Whether a reader may smooth it.
        clocked: Whether it is over steps of groups that have a clock, so that it can be over tokens and hours.
        marks: Group, x and label of what happened at some steps.
    """

    title: str
    unit: str
    axis: str
    last: int
    series: list[Series]
    span: tuple[float, ...] = ()
    log: bool = False
    wide: bool = False
    lines: list[dict[str, Any]] = field(default_factory=list)
    noisy: bool = False
    clocked: bool = False
    marks: list[dict[str, Any]] = field(default_factory=list)


def rounded(value: float) -> float | None:
    """A number with six digits for JSON, None if it is not finite."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


@dataclass(frozen=True)
class Group:
    """Runs that are one line in every chart."""

    label: str
    runs: list[Run]


def grouped(runs: list[Run]) -> list[Group]:
    """Group runs that differ only in training.seed and run.directory and are evaluated on the same selection of samples."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[_without_seed(run)].append(run)
    labels = [_label(members) for members in groups.values()]
    if len(set(labels)) < len(labels):
        labels = [", ".join(run.name for run in members) for members in groups.values()]
    return [Group(label, members) for label, members in zip(labels, groups.values(), strict=True)]


def clock(group: Group) -> dict[str, Any]:
    """A group's steps on other axes.

    Returns:
        Some `steps`, in order, the `tokens` until each of them, and the `hours` of training, the mean of several runs.
    """
    knots = np.unique(np.linspace(0, max(run.last_step for run in group.runs), MAX_TIMES + 1).astype(int))
    hours = []
    for run in group.runs:
        steps = np.concatenate([[0], run.metrics["step"]])
        passed = np.concatenate([[0], np.nancumsum(run.metrics["seconds"])]) / 3600
        hours.append(np.interp(knots, steps, passed))
    longest = max(group.runs, key=lambda run: run.last_step)
    tokens = [longest.samples(int(knot)) * longest.config.data.sequence_length for knot in knots]
    means = [rounded(hour) for hour in np.mean(hours, 0)]
    return {"steps": [float(knot) for knot in knots], "tokens": tokens, "hours": means}


def charts(groups: list[Group]) -> list[Chart]:
    """The charts of the page."""
    last = max(run.last_step for group in groups for run in group.runs)
    width = -(-last // MAX_POINTS) or 1

    def chart(title: str, unit: str, columns: dict[str, str], noisy: bool = False, log: bool = False) -> Chart:
        series = [
            _series(number, group, style, column, width)
            for number, group in enumerate(groups)
            for column, style in columns.items()
        ]
        return Chart(title, unit, "step", last, [one for one in series if one.x], log=log, noisy=noisy, clocked=True)

    loss = chart("Loss", "nats per target", {"loss": "line", "validation_loss": "points"}, noisy=True, log=True)
    average = chart("Loss of the moving average", "nats per target", {"ema_validation_loss": "points"}, log=True)
    return [
        replace(loss, wide=True, lines=_entropies(groups), marks=_marks(groups)),
        *([average] if average.series else []),
        chart("Learning rate", "", {"lr": "line"}),
        chart("Gradient norm", "before clipping", {"grad_norm": "line"}, noisy=True, log=True),
        chart("Throughput", "tokens/s, all ranks", {"speed": "line"}, noisy=True),
        chart("Peak memory", "GiB, the main rank's process", {"memory": "line"}),
    ]


def _series(number: int, group: Group, style: str, column: str, width: int) -> Series:
    """Means over `width` steps; low and high: the extremes of one run, or of the means of several."""
    curves = [_averaged(run.metrics["step"], _values(run, column), width) for run in group.runs]
    series = Series(number, style)
    for interval in sorted({interval for curve in curves for interval in curve}):
        means = np.array([curve[interval] for curve in curves if interval in curve])
        low, high = means[:, 1:3].T if len(curves) == 1 else (means[:, 3], means[:, 3])
        series.add(means[:, 0].mean(), means[:, 3].mean(), low.min(), high.max())
    return series


def _averaged(steps: np.ndarray, values: np.ndarray, width: int) -> dict[int, tuple[float, float, float, float]]:
    """Number of an interval of `width` steps -> mean step, least, largest and mean value, where some are finite."""
    finite = np.isfinite(values)
    steps = steps[finite]
    values = values[finite]
    numbers = ((steps - 1) // width).astype(int)
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    parts = zip(numbers[starts], np.split(steps, starts[1:]), np.split(values, starts[1:]), strict=True) if steps.size else ()
    return {int(number): (inside.mean(), part.min(), part.max(), part.mean()) for number, inside, part in parts}


def _values(run: Run, column: str) -> np.ndarray:
    if column == "speed":
        seconds = np.where(run.metrics["seconds"] > 0, run.metrics["seconds"], np.nan)
        samples = [run.config.batches.of_step(int(step)) for step in run.metrics["step"]]
        return np.array(samples) * run.config.data.sequence_length / seconds
    if column == "memory":
        return run.metrics["peak_memory"] / 2**30
    return run.metrics[column]


def _marks(groups: list[Group]) -> list[dict[str, Any]]:
    marks = [
        {"group": number, "x": step, "label": f"{event['event']} after step {step:,}: {event['detail']}"[:300]}
        for number, group in enumerate(groups)
        for run in group.runs
        for event in run.events
        if event["event"] not in UNMARKED and 0 < (step := event["step"]) < 2**53
    ]
    return marks[-MAX_MARKS:]


def _entropies(groups: list[Group]) -> list[dict[str, Any]]:
    """The unigram entropy of each data directory: a model above this loss uses no context."""
    runs = [run for group in groups for run in group.runs]
    entropies = {run.config.data.path: run.unigram_entropy for run in runs if np.isfinite(run.unigram_entropy)}
    label = "unigram entropy of {}" if len(entropies) > 1 else "unigram entropy"
    return [{"label": label.format(Path(path).name), "y": rounded(entropy)} for path, entropy in entropies.items()]


def _without_seed(run: Run) -> str:
    config = run.config.model_dump()
    del config["run"], config["training"]["seed"]
    return json.dumps([config, run.selection])


def _label(runs: list[Run]) -> str:
    if len(runs) == 1:
        return runs[0].name
    words = os.path.commonprefix([re.split(r"([\W_]+)", run.name) for run in runs])
    common = re.sub(r"[\W_]*(seed)?[\W_]*$", "", "".join(words))
    if not common:  # seed-1, seed-2 and so on, or names without anything in common
        common = runs[0].folder.directory.parent.name if words else runs[0].name
    seeds = {run.config.training.seed for run in runs}
    return f"{common} ({len(runs)} {'seeds' if len(seeds) == len(runs) else 'runs'})"
