"""Charts for chart.js, and the charts of runs over steps, with a curve for each group of runs that differ only in their seed.

Numbers that are not finite become None.
"""

import json
import math
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from megatape.lab.report.run import Run

# Maximum points per curve. Longer runs are averaged over neighboring steps.
MAX_POINTS = 1000
# Maximum number of intervals of steps whose time the page knows.
MAX_TIMES = 200
# Maximum number of marked events on a chart, the last ones of all runs.
MAX_MARKS = 200
MAX_MARK_CHARACTERS = 300
UNMARKED = ("started", "checkpoint", "finished")
# Largest integer that JavaScript represents exactly, plus one.
MAX_STEP = 2**53


@dataclass
class Series:
    """A line with a band around it.

    Attributes:
        group: Number of the group of runs, which has the label.
        style: "line" or "points".
        x: Horizontal coordinate of each point.
        y: Vertical coordinate of each point.
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
        self.x.append(rounded(x))
        self.y.append(rounded(y))
        self.low.append(rounded(low))
        self.high.append(rounded(high))


@dataclass(frozen=True)
class Chart:
    """A chart over steps, lengths or distances.

    Attributes:
        title: Title above the chart.
        unit: Unit of the vertical axis.
        axis: Name of the horizontal axis, which begins at 0.
        last: End of the horizontal axis.
        series: Lines of the chart.
        span: Values that the vertical axis includes.
        log: Whether the vertical axis is logarithmic.
        wide: Whether the chart is as wide as the page.
        lines: Label and y of each horizontal line.
        noisy: Whether a reader may smooth the lines.
        clocked: Whether the horizontal axis can be switched from steps to tokens and hours, because the groups have clocks.
        marks: Group, x and label of each marked event.
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
    """Round a number to six digits for JSON. Return None if it is not finite."""
    if not np.isfinite(value):
        return None
    return float(f"{value:.6g}")


@dataclass(frozen=True)
class Group:
    """Runs that share a line in every chart.

    Attributes:
        label: Label of the line.
        runs: Runs that differ only in their seed.
    """

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
    """Convert a group's steps to tokens and hours.

    Returns:
        Some `steps` in order, the `tokens` until each of them, and the `hours` of training, averaged over the runs.
    """
    longest = max(group.runs, key=lambda run: run.last_step)
    knots = np.unique(np.linspace(0, longest.last_step, MAX_TIMES + 1).astype(int))
    hours_by_run = []
    for run in group.runs:
        steps = np.concatenate([[0], run.metrics["step"]])
        seconds = np.concatenate([[0], np.nancumsum(run.metrics["seconds"])])
        hours_by_run.append(np.interp(knots, steps, seconds / 3600))
    sequence_length = longest.config.data.sequence_length
    return {
        "steps": [float(knot) for knot in knots],
        "tokens": [longest.samples(int(knot)) * sequence_length for knot in knots],
        "hours": [rounded(hours) for hours in np.mean(hours_by_run, 0)],
    }


def charts(groups: list[Group]) -> list[Chart]:
    """Return the charts of the page."""
    last = max(run.last_step for group in groups for run in group.runs)
    width = max(1, math.ceil(last / MAX_POINTS))

    def chart(title: str, unit: str, columns: dict[str, str], noisy: bool = False, log: bool = False) -> Chart:
        lines = []
        for number, group in enumerate(groups):
            for column, style in columns.items():
                series = _series(number, group, style, column, width)
                if series.x:
                    lines.append(series)
        return Chart(title, unit, "step", last, lines, log=log, noisy=noisy, clocked=True)

    loss = chart("Loss", "nats per target", {"loss": "line", "validation_loss": "points"}, noisy=True, log=True)
    found = [replace(loss, wide=True, lines=_entropies(groups), marks=_marks(groups))]
    average = chart("Loss of the moving average", "nats per target", {"ema_validation_loss": "points"}, log=True)
    if average.series:
        found.append(average)
    found += [
        chart("Learning rate", "", {"lr": "line"}),
        chart("Gradient norm", "before clipping", {"grad_norm": "line"}, noisy=True, log=True),
        chart("Throughput", "tokens/s, all ranks", {"speed": "line"}, noisy=True),
        chart("Peak memory", "GiB, the main rank's process", {"memory": "line"}),
    ]
    return found


def _series(number: int, group: Group, style: str, column: str, width: int) -> Series:
    """Return the line of a group, averaged over `width` steps. Its band spans one run's extremes, or the means of several."""
    curves = [_averaged(run.metrics["step"], _values(run, column), width) for run in group.runs]
    intervals: set[int] = set()
    for curve in curves:
        intervals.update(curve)

    series = Series(number, style)
    for interval in sorted(intervals):
        averages = [curve[interval] for curve in curves if interval in curve]
        step = fmean(average.step for average in averages)
        value = fmean(average.value for average in averages)
        if len(curves) == 1:
            series.add(step, value, averages[0].low, averages[0].high)
        else:
            values = [average.value for average in averages]
            series.add(step, value, min(values), max(values))
    return series


class _Average(NamedTuple):
    """Averages over an interval of steps, with the extremes of the values."""

    step: float
    value: float
    low: float
    high: float


def _averaged(steps: np.ndarray, values: np.ndarray, width: int) -> dict[int, _Average]:
    """Average finite values over intervals of `width` steps. Intervals without any are skipped.

    Returns:
        Number of the interval -> averages.
    """
    is_finite = np.isfinite(values)
    if not is_finite.any():
        return {}
    steps = steps[is_finite]
    values = values[is_finite]
    intervals = ((steps - 1) // width).astype(int)
    starts = np.flatnonzero(np.diff(intervals, prepend=-1))
    step_parts = np.split(steps, starts[1:])
    value_parts = np.split(values, starts[1:])

    averages = {}
    for interval, inside, part in zip(intervals[starts].tolist(), step_parts, value_parts, strict=True):
        averages[interval] = _Average(inside.mean(), part.mean(), part.min(), part.max())
    return averages


def _values(run: Run, column: str) -> np.ndarray:
    """Return the values of a column of metrics, or those derived from it, float64 [steps]."""
    if column == "speed":
        seconds = np.where(run.metrics["seconds"] > 0, run.metrics["seconds"], np.nan)
        samples = [run.config.batches.of_step(int(step)) for step in run.metrics["step"]]
        return np.array(samples) * run.config.data.sequence_length / seconds
    if column == "memory":
        return run.metrics["peak_memory"] / 2**30
    return run.metrics[column]


def _marks(groups: list[Group]) -> list[dict[str, Any]]:
    """Return the marked events of all runs, the last ones if there are many."""
    marks = []
    for number, group in enumerate(groups):
        for run in group.runs:
            for event in run.events:
                if event.kind in UNMARKED or not 0 < event.step < MAX_STEP:
                    continue
                label = f"{event.kind} after step {event.step:,}: {event.detail}"
                marks.append({"group": number, "x": event.step, "label": label[:MAX_MARK_CHARACTERS]})
    return marks[-MAX_MARKS:]


def _entropies(groups: list[Group]) -> list[dict[str, Any]]:
    """Return a line at the unigram entropy of each data directory. A model above this loss uses no context."""
    entropies: dict[str, float] = {}
    for group in groups:
        for run in group.runs:
            if np.isfinite(run.unigram_entropy):
                entropies[run.config.data.path] = run.unigram_entropy
    lines = []
    for path, entropy in entropies.items():
        label = "unigram entropy"
        if len(entropies) > 1:
            label = f"unigram entropy of {Path(path).name}"
        lines.append({"label": label, "y": rounded(entropy)})
    return lines


def _without_seed(run: Run) -> str:
    """Return a text that is the same for runs that differ only in their seed and folder."""
    config = run.config.model_dump()
    del config["run"]
    del config["training"]["seed"]
    return json.dumps([config, run.selection])


def _label(runs: list[Run]) -> str:
    """Label a group with what the names of its runs have in common."""
    if len(runs) == 1:
        return runs[0].name
    words = os.path.commonprefix([re.split(r"([\W_]+)", run.name) for run in runs])
    common = re.sub(r"[\W_]*(seed)?[\W_]*$", "", "".join(words))
    if not common and words:
        # Names such as seed-1 and seed-2.
        common = runs[0].folder.directory.parent.name
    elif not common:
        common = runs[0].name
    seeds = {run.config.training.seed for run in runs}
    noun = "runs"
    if len(seeds) == len(runs):
        noun = "seeds"
    return f"{common} ({len(runs)} {noun})"
