"""Plots shared by `compare` and `finetune`: loss curves, and a metric by length."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib import rcParams
from matplotlib.axes import Axes as Plot
from matplotlib.figure import Figure

from megatape.lab.study.results.text_result import PERPLEXITY_AXES, TextResult

# Values by step or length.
Curve = dict[int, float]


class Row(NamedTuple):
    """Results of a variant or a method, one for each seed, with its label."""

    label: str
    results: list[TextResult]


def draw_curves(figure: Figure, rows: list[Row]) -> None:
    """Draw loss curves and a metric by length, with a line for the mean over seeds and a band from minimum to maximum.

    A variant with scaling has no loss curve, because it shares the training of the variant without.
    """
    figure.set_size_inches(13, 5)
    losses, measured = figure.subplots(1, 2)
    # A model has the same color in both plots.
    styles = rcParams["axes.prop_cycle"]()
    for (label, results), style in zip(rows, styles, strict=False):
        if results[0].scaling is None:
            _draw_band(losses, [result.losses for result in results], style)
        _draw_band(measured, [result.curve for result in results], style | {"label": label, "marker": "."})
    losses.set(xlabel="step", ylabel="training loss (nats)", yscale="log")
    first = rows[0].results[0]
    measured.set(xlabel=first.axes.length, ylabel=first.axes.metric)
    if first.axes == PERPLEXITY_AXES:
        measured.set_xscale("log", base=2)
    measured.set_xticks(list(first.curve))
    measured.legend()


def _draw_band(plot: Plot, curves: Sequence[Curve], style: dict[str, Any]) -> None:
    steps = list(curves[0])
    means = []
    lows = []
    highs = []
    for step in steps:
        values = [curve[step] for curve in curves]
        means.append(fmean(values))
        lows.append(min(values))
        highs.append(max(values))
    plot.plot(steps, means, **style)
    plot.fill_between(steps, lows, highs, color=style["color"], alpha=0.15)
