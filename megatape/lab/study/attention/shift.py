"""Shift stability: how a model's output changes if tokens are added in front of a text, or if its position ids start later.

added tokens   S more <s> before the sequence: the same tokens at positions S, S + 1, ..., with S more tokens to attend to
shifted ids    the same sequence at positions S, S + 1, ...: functions of relative positions do not change

Shapes as in model/transformer.py; S is the shift.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from megatape.errors import UserError, flag
from megatape.lab.paper import SHIFT_ATTENTION, SHIFT_DOT_PRODUCTS, SHIFT_LAYERS
from megatape.lab.study.attention.examined_model import ExaminedModel
from megatape.lab.study.attention.layer_inputs import ForwardPass, dot_products, probabilities, run
from megatape.utils.text.paragraphs import Show
from megatape.utils.text.tables import markdown

ADDED = "added tokens"
SHIFTED = "shifted ids"


@dataclass(frozen=True)
class Change:
    """Change caused by a shift, measured at the original tokens.

    Attributes:
        attention: `attention_difference` of each layer.
        dot_products: `dot_product_difference` of each layer, empty for an encoding without position tensors.
        logits: Largest absolute difference over the largest absolute logit.
    """

    attention: list[float]
    dot_products: list[float]
    logits: float


@dataclass(frozen=True)
class Changes:
    """Changes of a model by both kinds of shift: means over its sequences, and the maximum for the logits."""

    added: Change
    shifted: Change


@dataclass(frozen=True)
class LayerTable:
    """Tables of a quantity by layer, one for each kind of shift.

    Attributes:
        title: Title, with the unit.
        paper: The paper's values by kind of shift and encoding.
        select: Selects the value of each layer. Tables show a hundredfold.
    """

    title: str
    paper: dict[str, dict[str, list[float]]]
    select: Callable[[Change], list[float]]


LAYER_TABLES = (
    LayerTable("attention difference, 10^-2", SHIFT_ATTENTION, lambda change: change.attention),
    LayerTable("difference of position dot products, %", SHIFT_DOT_PRODUCTS, lambda change: change.dot_products),
)


def attention_difference(before: Tensor, after: Tensor) -> float:
    """Return the fraction of attention that a query moves to other keys, averaged over sequences, heads and queries.

    This is the total variation distance between the two distributions: half the sum of |A' - A| over keys, with A = 0 for
    added keys.

    Args:
        before: Probabilities [B, H, N, N].
        after: Probabilities [B, H, N + S, N + S]. The last N tokens are those of before.
    """
    length = before.shape[-1]
    after = after[:, :, -length:]
    to_original = (after[..., -length:] - before).abs().sum(-1)
    to_added = after[..., :-length].sum(-1)
    return float((to_original + to_added).mean() / 2)


def dot_product_difference(before: Tensor, after: Tensor) -> float:
    """Return the norm of the change in all pairs' dot products, divided by the norm before.

    Args:
        before: Dot products [B, L, N, N].
        after: Dot products [B, L, N + S, N + S]. The last N tokens are those of before.
    """
    length = before.shape[-1]
    change = after[..., -length:, -length:] - before
    return float(change.norm() / before.norm())


def compare(before: ForwardPass, after: ForwardPass) -> Change:
    """Return the change from one forward pass of a model to another, which has S >= 0 tokens added in front."""
    attention = []
    products = []
    for layer, later_layer in zip(before.layers, after.layers, strict=True):
        attention.append(attention_difference(probabilities(layer), probabilities(later_layer)))
        original = dot_products(layer)
        changed = dot_products(later_layer)
        if original is not None and changed is not None:
            products.append(dot_product_difference(original, changed))
    length = before.logits.shape[1]
    largest_change = (after.logits[:, -length:] - before.logits).abs().max()
    largest_logit = before.logits.abs().max()
    return Change(attention, products, float(largest_change / largest_logit))


def measure_changes(examined: ExaminedModel, shift: int) -> Changes:
    """Measure the changes by both kinds of shift.

    Args:
        examined: Model with its text.
        shift: Number of added tokens, or first position id.

    Returns:
        Changes over all sequences of the text.

    Raises:
        UserError: The shift is not in 1 .. length - 1.
    """
    length = examined.tokens.shape[1]
    if not 1 <= shift < length:
        raise UserError(f"{flag('shift')} is {shift}, but the sequences have {length} tokens: give 1 to {length - 1}")
    positions = examined.positions(length)
    longer_positions = examined.positions(length + shift)
    added_tokens = torch.full((1, shift), examined.bos)
    added: list[Change] = []
    shifted: list[Change] = []
    # Run one sequence at a time, because the probabilities of a layer take [H, N, N].
    for sequence in examined.tokens:
        tokens = sequence[None]
        before = run(examined.model, tokens, positions)
        with_added = run(examined.model, torch.cat([added_tokens, tokens], dim=1), longer_positions)
        added.append(compare(before, with_added))
        with_shift = run(examined.model, tokens, positions + shift)
        shifted.append(compare(before, with_shift))
    return Changes(_mean(added), _mean(shifted))


def _mean(changes: list[Change]) -> Change:
    """Return the mean of each layer's changes, and the maximum of the changes of logits."""
    attention_by_layer = zip(*(change.attention for change in changes), strict=True)
    products_by_layer = zip(*(change.dot_products for change in changes), strict=True)
    return Change(
        attention=[fmean(values) for values in attention_by_layer],
        dot_products=[fmean(values) for values in products_by_layer],
        logits=max(change.logits for change in changes),
    )


def report(models: list[ExaminedModel], shift: int, show: Show) -> None:
    """Measure the changes, and show the paragraphs of the study.

    Args:
        models: Models of the study.
        shift: Number of added tokens, or first position id.
        show: Called with each paragraph.

    Raises:
        UserError: A model cannot be measured, see `measure_changes`.
    """
    show("\n".join(examined.source for examined in models))
    sizes: dict[str, None] = {}
    for examined in models:
        count, length = examined.tokens.shape
        sizes[f"{count} sequences of {length} tokens"] = None
    show(f"{', '.join(sizes)}, float32 on a CPU, shift {shift}. The paper's shift is 3, on its 155M models.")

    all_changes = [measure_changes(examined, shift) for examined in models]
    added = [change.added for change in all_changes]
    shifted = [change.shifted for change in all_changes]
    for layer_table in LAYER_TABLES:
        show(f"{ADDED}: {layer_table.title}, by layer\n\n{_fill(layer_table, models, added, ADDED)}")
        show(f"{SHIFTED}: {layer_table.title}, by layer\n\n{_fill(layer_table, models, shifted, SHIFTED)}")

    rows = []
    for examined, change in zip(models, all_changes, strict=True):
        rows.append([f"`{examined.label}`", f"{change.added.logits:.2g}", f"{change.shifted.logits:.2g}"])
    table = markdown(["", ADDED, SHIFTED], rows)
    show(f"largest difference of the logits over the largest logit\n\n{table}")


def _fill(layer_table: LayerTable, models: list[ExaminedModel], changes: list[Change], kind: str) -> str:
    """Return a table with a column for each layer, and the paper's values below a model's. Shallow models have empty cells.

    Args:
        layer_table: Quantity to show.
        models: Models of the study.
        changes: Change of each model.
        kind: Kind of shift, as in the paper's tables.
    """
    num_layers = max(examined.model.config.num_layers for examined in models)
    rows = []
    for examined, change in zip(models, changes, strict=True):
        values = layer_table.select(change)
        rows.append([f"`{examined.label}`", *(f"{100 * value:.3g}" for value in values)])
        published = layer_table.paper[kind].get(examined.model.config.encoding)
        if published:
            rows.append(["paper", *_paper_cells(published, len(values))])
    padded = []
    for row in rows:
        num_missing = 1 + num_layers - len(row)
        padded.append(row + [""] * num_missing)
    header = ["", *(str(layer) for layer in range(1, num_layers + 1))]
    return markdown(header, padded)


def _paper_cells(published: list[float], num_layers: int) -> list[str]:
    """Return the paper's values by layer, empty for layers that it does not show."""
    value_of = dict(zip(SHIFT_LAYERS, published, strict=False))
    return [str(value_of.get(layer, "")) for layer in range(1, num_layers + 1)]
