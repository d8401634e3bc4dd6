"""Pictures of a comparison: loss curves, and a metric by length."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from megatape.lab.study.outcomes.outcome import Outcome

# Values by step or length.
Curve = dict[int, float]


class Row(NamedTuple):
    """Results of a variant or a method.

    Attributes:
        label: Label of the variant, or name of the method.
        outcomes: An outcome for each seed.
    """

    label: str
    outcomes: list[Outcome]


def draw_curves(figure: Figure, rows: list[Row]) -> None:
    """Draw loss curves and a metric by length, with a line for the mean over seeds and a band from minimum to maximum.

    A variant with scaling has no loss curve: its training is that of the variant without.
    """
    figure.set_size_inches(13, 5)
    losses, measured = figure.subplots(1, 2)
    # Both sides have the same color.
    styles = rcParams["axes.prop_cycle"]()
    for (label, outcomes), style in zip(rows, styles, strict=False):
        if outcomes[0].scaling is None:
            _draw_band(losses, [outcome.losses for outcome in outcomes], style)
        _draw_band(measured, [outcome.curve for outcome in outcomes], style | {"label": label, "marker": "."})
    losses.set(xlabel="step", ylabel="training loss (nats)", yscale="log")
    first = rows[0].outcomes[0]
    length, metric = first.axes
    measured.set(xlabel=length, ylabel=metric)
    if length == "tokens":
        measured.set_xscale("log", base=2)
    measured.set_xticks(list(first.curve))
    measured.legend()


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
