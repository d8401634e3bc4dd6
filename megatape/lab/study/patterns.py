"""Plots the position tensors' dot products and attention, layer by layer, as in the paper's Figure 7.

Shapes as in model/transformer.py.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from megatape.errors import MissingPath, UserError
from megatape.lab.pictures import save
from megatape.lab.study.subjects import Subject, dot_products, probabilities, run

MAX_COLUMNS = 6  # layers shown
PANEL_INCHES = 2.0


def draw(subjects: list[Subject], out: Path) -> Iterator[str]:
    """Write the plot as PNG files for light and dark grounds, and yield a description of it.

    One row of dot products for each model that has position tensors, taken as they enter a layer; then one row for each
    model but the first, with its attention minus the first model's. All are means over sequences and over channels or
    heads. Raises UserError if `out` is not a PNG or the models cannot be compared, FileNotFoundError without its folder.
    """
    if out.suffix != ".png":
        raise UserError(f"out is {out}: give a name that ends in .png")
    if not out.parent.is_dir():
        raise MissingPath(f"out is {out}: no folder {out.parent}: create it or choose another")
    depths = {subject.model.config.num_layers for subject in subjects}
    if len(depths) > 1 or any(not torch.equal(subject.tokens, subjects[0].tokens) for subject in subjects):
        raise UserError(
            f"the models have {', '.join(map(str, sorted(depths)))} layers, or different texts: give models of equal depth and "
            "data"
        )
    layers = shown(depths.pop())
    patterns = {subject.label: maps(subject, layers) for subject in subjects}
    first = subjects[0].label
    rows: list[tuple[str, list[Tensor]]] = [
        (f"dot products:\n{label}", products) for label, (products, _) in patterns.items() if products
    ]
    for label, (_, attention) in patterns.items():
        if label != first:
            difference = [own - base for own, base in zip(attention, patterns[first][1], strict=True)]
            rows.append((f"attention:\n{label}\n- {first}", difference))
    if not rows:
        raise UserError(f"nothing to show for {first} alone: it has no position tensor; give a second model")
    save(out, lambda figure: draw_panels(figure, rows, layers))
    yield "\n".join(subject.source for subject in subjects)
    yield f"wrote {out}: {len(rows)} rows, layers {', '.join(map(str, layers))}"


def shown(num_layers: int) -> list[int]:
    """Layers to show, counted from 1: the last one, and up to MAX_COLUMNS - 1 powers of two below it, the largest."""
    powers = [2**power for power in range(num_layers.bit_length()) if 2**power < num_layers]
    return [*powers[-MAX_COLUMNS + 1 :], num_layers]


def maps(subject: Subject, layers: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """(dot products, attention), each [N, N] per layer: means over sequences and over channels or heads.

    There are no dot products for an encoding without position tensors.
    """
    count, length = subject.tokens.shape
    products: dict[int, Tensor] = {}
    attention = {layer: torch.zeros(length, length) for layer in layers}
    for sequence in subject.tokens:
        _, inputs = run(subject.model, sequence[None], subject.positions(length))
        for layer in layers:
            attention[layer] += probabilities(inputs[layer - 1])[0].mean(0) / count
            product = dot_products(inputs[layer - 1])
            if product is not None:
                products[layer] = products.get(layer, torch.zeros(length, length)) + product[0].mean(0) / count
    return list(products.values()), list(attention.values())


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
