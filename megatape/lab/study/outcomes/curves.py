"""Pictures of a comparison: loss curves, and a metric by length."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from megatape.lab.study.outcomes.outcome import Outcome

# Values by step or length.
Curve = dict[int, float]
# Label of a variant or a method, and an outcome for each seed.
Row = tuple[str, list[Outcome]]


def draw_curves(figure: Figure, rows: list[Row]) -> None:
    """Draw loss curves and a metric by length, with a line for the mean over seeds and a band from minimum to maximum.

    A variant with scaling has no loss curve: its training is that of the variant without.
    """
    figure.set_size_inches(13, 5)
    losses, measured = figure.subplots(1, 2)
    # Both sides have the same colour.
    styles = rcParams["axes.prop_cycle"]()
    for (label, outcomes), style in zip(rows, styles, strict=False):
        if outcomes[0].scaling is None:
            _draw_band(losses, [outcome.losses for outcome in outcomes], style)
        _draw_band(measured, [outcome.curve for outcome in outcomes], style | {"label": label, "marker": "."})
    losses.set(xlabel="step", ylabel="training loss (nats)", yscale="log")
    first = rows[0][1][0]
    length, metric = first.axes
    measured.set(xlabel=length, ylabel=metric)
    if length == "tokens":
        measured.set_xscale("log", base=2)
    measured.set_xticks(list(first.curve))
    measured.legend()


def draw_extension(figure: Figure, rows: list[Row], original: int) -> None:
    """Draw the curves of methods that extend a model's context.

    Args:
        figure: Figure to draw on.
        rows: Outcomes of the methods.
        original: Original length of the model, which is marked.
    """
    draw_curves(figure, rows)
    losses, measured = figure.axes
    losses.set_yscale("linear")
    measured.set_yscale("log")
    measured.axvline(original, color="grey", linewidth=0.8)
    lengths = list(rows[0][1][0].curve)
    measured.set_xticks(lengths, [str(length) for length in lengths])
    # Numbers in place of powers of ten.
    measured.yaxis.set_major_formatter(LogFormatter())
    measured.yaxis.set_minor_formatter(LogFormatter())


def _draw_band(axes: Axes, curves: Sequence[Curve], style: dict[str, Any]) -> None:
    steps = list(curves[0])
    means = []
    lows = []
    highs = []
    for step in steps:
        values = [curve[step] for curve in curves]
        means.append(fmean(values))
        lows.append(min(values))
        highs.append(max(values))
    axes.plot(steps, means, **style)
    axes.fill_between(steps, lows, highs, color=style["color"], alpha=0.15)
