"""Curves over steps: loss, learning rate, gradient norm, throughput, memory."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from megatape.lab.report.charts import Chart, HorizontalLine, Mark, Series, rounded
from megatape.lab.report.groups import Group
from megatape.lab.report.run import Run

# Maximum points per curve. Longer runs are averaged over neighboring steps.
MAX_POINTS = 1000
# Maximum number of marked events on a chart, the last ones of all runs.
MAX_MARKS = 200
MAX_MARK_CHARACTERS = 300
UNMARKED = ("started", "checkpoint", "finished")
# Largest integer that JavaScript represents exactly, plus one.
MAX_STEP = 2**53


def charts(groups: list[Group]) -> list[Chart]:
    """Return the charts for a page about runs."""
    last = 0
    for group in groups:
        last = max(last, *(run.last_step for run in group.runs))
    width = max(1, math.ceil(last / MAX_POINTS))

    def chart(title: str, unit: str, columns: dict[str, str], noisy: bool = False, log: bool = False) -> Chart:
        curves = []
        for number, group in enumerate(groups):
            for column, style in columns.items():
                series = _series(number, group, style, column, width)
                if series.x:
                    curves.append(series)
        return Chart(title, unit, "step", last, curves, log=log, noisy=noisy, clocked=True)

    loss = chart("Loss", "nats per target", {"loss": "line", "validation_loss": "points"}, noisy=True, log=True)
    shown = [replace(loss, wide=True, lines=_entropies(groups), marks=_marks(groups))]
    average = chart("Loss of the moving average", "nats per target", {"ema_validation_loss": "points"}, log=True)
    if average.series:
        shown.append(average)
    shown += [
        chart("Learning rate", "", {"lr": "line"}),
        chart("Gradient norm", "before clipping", {"grad_norm": "line"}, noisy=True, log=True),
        chart("Throughput", "tokens/s, all ranks", {"speed": "line"}, noisy=True),
        chart("Peak memory", "GiB, the main rank's process", {"memory": "line"}),
    ]
    return shown


def _series(number: int, group: Group, style: str, column: str, width: int) -> Series:
    """Return a group's curve, averaged over `width` steps. Its band spans one run's extremes, or the means of several runs."""
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
    """Mean step and value in a step interval, with the extreme values."""

    step: float
    value: float
    low: float
    high: float


def _averaged(steps: np.ndarray, values: np.ndarray, width: int) -> dict[int, _Average]:
    """Average finite values over `width` steps each: interval -> averages. Skip intervals without values."""
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
    """Return a column of metrics, or "speed" or "memory" derived from one, float64 [steps]."""
    if column == "speed":
        seconds = np.where(run.metrics["seconds"] > 0, run.metrics["seconds"], np.nan)
        samples = [run.config.batches.of_step(int(step)) for step in run.metrics["step"]]
        return np.array(samples) * run.config.data.sequence_length / seconds
    if column == "memory":
        return run.metrics["peak_memory"] / 2**30
    return run.metrics[column]


def _marks(groups: list[Group]) -> list[Mark]:
    """Return the last marked events in all runs."""
    marks = []
    for number, group in enumerate(groups):
        for run in group.runs:
            for event in run.events:
                if event.kind in UNMARKED or not 0 < event.step < MAX_STEP:
                    continue
                label = f"{event.kind} after step {event.step:,}: {event.detail}"
                marks.append(Mark(number, event.step, label[:MAX_MARK_CHARACTERS]))
    return marks[-MAX_MARKS:]


def _entropies(groups: list[Group]) -> list[HorizontalLine]:
    """Return a line at each data directory's unigram entropy. A model above it learned nothing from context."""
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
        lines.append(HorizontalLine(label, rounded(entropy)))
    return lines
