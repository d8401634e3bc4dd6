"""All pictures of the studies."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from torch import Tensor

PANEL_INCHES = 2.0

Curve = dict[int, float]


class Line(NamedTuple):
    """A model in a picture of curves.

    Attributes:
        label: Its name in the legend.
        losses: Training loss by step, a curve for each seed.
        curve: A metric by length, a curve for each seed.
        marker: Of the latter's points, as matplotlib has it; "": none.
    """

    label: str
    losses: Sequence[Curve]
    curve: Sequence[Curve]
    marker: str = ""


def draw_curves(figure: Figure, lines: Sequence[Line], axes: tuple[str, str]) -> None:
    """Draw loss curves, and a metric by length: a line for the mean over seeds, a band from the minimum to the maximum.

    Args:
        figure: An empty one.
        lines: Models, of which the first has all lengths.
        axes: Names of length and metric.
    """
    figure.set_size_inches(13, 5)
    losses, measured = figure.subplots(1, 2)
    for line, look in zip(lines, rcParams["axes.prop_cycle"](), strict=False):  # the same colour on both sides
        _band(losses, line.losses, look)
        _band(measured, line.curve, look | {"label": line.label, "marker": line.marker})
    losses.set(xlabel="step", ylabel="training loss (nats)", yscale="log")
    measured.set(xlabel=axes[0], ylabel=axes[1])
    if axes[0] == "tokens":
        measured.set_xscale("log", base=2)
    measured.set_xticks(list(lines[0].curve[0]))
    measured.legend()


def draw_extension(figure: Figure, lines: Sequence[Line], axes: tuple[str, str], original: int) -> None:
    """`draw_curves` of methods that extend a model's context, with its original length marked."""
    draw_curves(figure, lines, axes)
    losses, measured = figure.axes
    losses.set_yscale("linear")
    measured.set_yscale("log")
    measured.axvline(original, color="grey", linewidth=0.8)
    lengths = list(lines[0].curve[0])
    measured.set_xticks(lengths, list(map(str, lengths)))
    measured.yaxis.set_major_formatter(LogFormatter())  # numbers, not powers of ten
    measured.yaxis.set_minor_formatter(LogFormatter())


def _band(axes: Axes, curves: Sequence[Curve], look: dict[str, Any]) -> None:
    steps = list(curves[0]) if curves else []
    if not steps:
        return
    values = [[curve[step] for curve in curves] for step in steps]
    axes.plot(steps, [fmean(each) for each in values], **look)
    axes.fill_between(steps, [min(each) for each in values], [max(each) for each in values], color=look["color"], alpha=0.15)


def draw_panels(figure: Figure, rows: Sequence[tuple[str, list[Tensor]]], layers: list[int]) -> None:
    """Draw a panel for each row and layer. A row has a label, an image [N, N] per layer, and a color scale of its own."""
    figure.set_size_inches(PANEL_INCHES * len(layers) + 2, PANEL_INCHES * len(rows) + 0.5)
    panels = figure.subplots(len(rows), len(layers), squeeze=False)
    for layer, panel in zip(layers, panels[0], strict=True):
        panel.set_title(f"layer {layer}")
    for line, (label, images) in zip(panels, rows, strict=True):
        # A few large values, as of a first token that draws all attention, would leave the rest white.
        limit = float(np.quantile(torch.stack(images).abs().numpy(), 0.99)) or 1.0  # torch.quantile takes at most 2**24 numbers
        for panel, image in zip(line, images, strict=True):
            drawn = panel.imshow(image.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
            panel.set_xticks([])
            panel.set_yticks([])
        line[0].set_ylabel(label, fontsize="small")
        figure.colorbar(drawn, ax=list(line), shrink=0.8)
