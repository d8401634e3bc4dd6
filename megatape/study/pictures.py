"""All pictures of the studies."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from matplotlib import colormaps
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
        style: Style of the latter, as matplotlib has it.
    """

    label: str
    losses: Sequence[Curve]
    curve: Sequence[Curve]
    style: str = "-"


def draw_curves(lines: Sequence[Line], axes: tuple[str, str]) -> Figure:
    """Loss curves, and a metric by length: a line for the mean over seeds, a band from the minimum to the maximum.

    Args:
        lines: Models, of which the first has all lengths.
        axes: Names of length and metric.
    """
    figure = Figure(figsize=(13, 5), layout="constrained")
    losses, measured = figure.subplots(1, 2)
    for colour, line in zip(colormaps["turbo"](np.linspace(0.05, 0.95, len(lines))), lines, strict=True):
        _band(losses, line.losses, line.label, colour, "-")
        _band(measured, line.curve, line.label, colour, line.style)
    losses.set(xlabel="step", ylabel="training loss (nats)", yscale="log")
    measured.set(xlabel=axes[0], ylabel=axes[1])
    if axes[0] == "tokens":
        measured.set_xscale("log", base=2)
    measured.set_xticks(list(lines[0].curve[0]))
    measured.legend(fontsize="small")
    return figure


def draw_extension(lines: Sequence[Line], axes: tuple[str, str], original: int) -> Figure:
    """`draw_curves` of methods that extend a model's context, with its original length marked."""
    figure = draw_curves(lines, axes)
    losses, measured = figure.axes
    losses.set_yscale("linear")
    measured.set_yscale("log")
    measured.axvline(original, color="grey", linewidth=0.8)
    lengths = list(lines[0].curve[0])
    measured.set_xticks(lengths, list(map(str, lengths)))
    measured.yaxis.set_major_formatter(LogFormatter())  # numbers, not powers of ten
    measured.yaxis.set_minor_formatter(LogFormatter())
    return figure


def _band(axes: Axes, curves: Sequence[Curve], label: str, colour: np.ndarray, style: str) -> None:
    steps = list(curves[0]) if curves else []
    if not steps:
        return
    values = [[curve[step] for curve in curves] for step in steps]
    axes.plot(steps, [fmean(each) for each in values], style, color=colour, label=label)
    axes.fill_between(steps, [min(each) for each in values], [max(each) for each in values], color=colour, alpha=0.15)


def draw_panels(rows: Sequence[tuple[str, list[Tensor]]], layers: list[int]) -> Figure:
    """One panel for each row and layer. A row has a label, one image [N, N] per layer, and a color scale of its own."""
    figure = Figure(figsize=(PANEL_INCHES * len(layers) + 2, PANEL_INCHES * len(rows) + 0.5))
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
    return figure
