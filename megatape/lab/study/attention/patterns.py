"""Plot of position dot products and attention, layer by layer, as in the paper's Figure 7.

Shapes as in model/transformer.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from megatape.errors import MissingPath, UserError, flag
from megatape.lab.pictures import save
from megatape.lab.study.attention.examined_model import ExaminedModel
from megatape.lab.study.attention.layer_inputs import dot_products, probabilities, run

# Maximum number of layers to show.
MAX_COLUMNS = 6
PANEL_INCHES = 2.0
# Share of absolute values covered by a color scale. Covering a few large ones, such as those of a first token drawing all
# attention, would leave the others white.
SCALE_QUANTILE = 0.99


class Row(NamedTuple):
    """Row of the plot, with an image [N, N] for each layer."""

    label: str
    images: list[Tensor]


def draw(models: list[ExaminedModel], output: Path) -> list[str]:
    """Write the plot as PNG files for light and dark backgrounds, and return its description, two paragraphs.

    Each model with position tensors has a row of their dot products when entering a layer. Then each model except the first
    has a row of its attention minus the first model's. All are means over sequences and over channels or heads.

    Args:
        models: Models with the same text.
        output: PNG file.

    Raises:
        UserError: `output` is not a PNG, or the models cannot be compared.
        FileNotFoundError: The folder for the file is missing.
    """
    if output.suffix != ".png":
        raise UserError(f"{flag('output')} is {output}: give a name that ends in .png")
    if not output.parent.is_dir():
        raise MissingPath(f"{flag('output')} is {output}: no folder {output.parent}: create it or choose another")
    depths = {examined.model.config.num_layers for examined in models}
    first_tokens = models[0].tokens
    have_same_text = all(torch.equal(examined.tokens, first_tokens) for examined in models)
    if len(depths) > 1 or not have_same_text:
        numbers = ", ".join(str(depth) for depth in sorted(depths))
        raise UserError(f"the models have {numbers} layers, or different texts: give models of equal depth and data")
    layers = shown(depths.pop())
    rows = _rows(models, layers)
    if not rows:
        raise UserError(f"nothing to show for {models[0].label} alone: it has no position tensor; give a second model")
    save(output, lambda figure: draw_panels(figure, rows, layers))
    sources = "\n".join(examined.source for examined in models)
    numbers = ", ".join(str(layer) for layer in layers)
    return [sources, f"wrote {output}: {len(rows)} rows, layers {numbers}"]


def _rows(models: list[ExaminedModel], layers: list[int]) -> list[Row]:
    """Return the dot products of each model, then the other models' attention minus the first model's."""
    patterns = {examined.label: maps(examined, layers) for examined in models}
    first = models[0].label
    _, first_attention = patterns[first]
    rows: list[Row] = []
    for label, (products, _) in patterns.items():
        if products:
            rows.append(Row(f"dot products:\n{label}", products))
    for label, (_, attention) in patterns.items():
        if label != first:
            difference = [image - base for image, base in zip(attention, first_attention, strict=True)]
            rows.append(Row(f"attention:\n{label}\n- {first}", difference))
    return rows


def shown(num_layers: int) -> list[int]:
    """Return the layers to show, counting from 1: the last one, and the MAX_COLUMNS - 1 largest powers of two below it."""
    powers = [2**power for power in range(num_layers.bit_length()) if 2**power < num_layers]
    return [*powers[-MAX_COLUMNS + 1 :], num_layers]


def maps(examined: ExaminedModel, layers: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Return means over sequences and over channels or heads.

    Args:
        examined: Model with its text.
        layers: Layers, counting from 1.

    Returns:
        Dot products and attention, each [N, N] per layer. Dot products are empty for an encoding without position tensors.
    """
    num_sequences, length = examined.tokens.shape
    positions = examined.positions(length)
    products: dict[int, Tensor] = {}
    attention = {layer: torch.zeros(length, length) for layer in layers}
    for sequence in examined.tokens:
        _, inputs = run(examined.model, sequence[None], positions)
        for layer in layers:
            layer_inputs = inputs[layer - 1]
            over_heads = probabilities(layer_inputs)[0].mean(0)
            attention[layer] += over_heads / num_sequences
            product = dot_products(layer_inputs)
            if product is not None:
                over_channels = product[0].mean(0)
                products.setdefault(layer, torch.zeros(length, length))
                products[layer] += over_channels / num_sequences
    return list(products.values()), list(attention.values())


def draw_panels(figure: Figure, rows: Sequence[Row], layers: list[int]) -> None:
    """Draw a panel for each row and layer, with a color scale for each row."""
    width = PANEL_INCHES * len(layers) + 2
    height = PANEL_INCHES * len(rows) + 0.5
    figure.set_size_inches(width, height)
    panels = figure.subplots(len(rows), len(layers), squeeze=False)
    for layer, panel in zip(layers, panels[0], strict=True):
        panel.set_title(f"layer {layer}")
    for line, (label, images) in zip(panels, rows, strict=True):
        # NumPy computes the quantile because torch.quantile takes at most 2**24 numbers.
        magnitudes = torch.stack(images).abs().numpy()
        limit = float(np.quantile(magnitudes, SCALE_QUANTILE)) or 1.0
        for panel, image in zip(line, images, strict=True):
            drawn = panel.imshow(
                image.numpy(),
                cmap="RdBu_r",
                vmin=-limit,
                vmax=limit,
                interpolation="nearest",
            )
            panel.set_xticks([])
            panel.set_yticks([])
        line[0].set_ylabel(label, fontsize="small")
        figure.colorbar(drawn, ax=list(line), shrink=0.8)
