"""Shift stability: what changes for the same tokens when others precede them, or when their position ids start later.

added tokens   S more <s> before the sequence: the same tokens at positions S, S + 1, ..., with S more tokens to attend to
shifted ids    the same sequence at positions S, S + 1, ...: functions of relative positions do not change

Shapes as in model/transformer.py; S is the shift.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from megatape.errors import UserError
from megatape.lab.paper import SHIFT_ATTENTION, SHIFT_DOT_PRODUCTS, SHIFT_LAYERS
from megatape.lab.study.subjects import LayerInputs, Subject, dot_products, probabilities, run
from megatape.utils.tables import markdown

ADDED = "added tokens"
SHIFTED = "shifted ids"


@dataclass(frozen=True)
class Change:
    """Changes by a shift, over the original tokens.

    Attributes:
        attention: `attention_difference` of each layer.
        dot_products: `dot_product_difference` of each layer; empty for an encoding without position tensors.
        logits: Largest absolute difference over the largest absolute logit.
    """

    attention: list[float]
    dot_products: list[float]
    logits: float


def attention_difference(before: Tensor, after: Tensor) -> float:
    """Fraction of its attention that a query moves to other keys, 0 to 1, averaged over sequences, heads and queries.

    This is the total variation distance of the two distributions, half the sum over keys of |A' - A|, where A is 0 for
    added keys. before: [B, H, N, N]. after: [B, H, N + S, N + S], whose last N tokens are those of before.
    """
    length = before.shape[-1]
    after = after[:, :, -length:]
    moved = (after[..., -length:] - before).abs().sum(-1) + after[..., :-length].sum(-1)
    return float(moved.mean() / 2)


def dot_product_difference(before: Tensor, after: Tensor) -> float:
    """Norm of the change of all pairs' dot products over the norm before.

    before: [B, L, N, N]. after: [B, L, N + S, N + S], whose last N tokens are those of before.
    """
    length = before.shape[-1]
    return float((after[..., -length:, -length:] - before).norm() / before.norm())


def compare(before: tuple[Tensor, list[LayerInputs]], after: tuple[Tensor, list[LayerInputs]]) -> Change:
    """Compare two forward passes of one model, the second with S >= 0 more tokens in front."""
    attention = []
    products = []
    for here, there in zip(before[1], after[1], strict=True):
        attention.append(attention_difference(probabilities(here), probabilities(there)))
        original = dot_products(here)
        changed = dot_products(there)
        if original is not None and changed is not None:
            products.append(dot_product_difference(original, changed))
    logits = before[0]
    others = after[0][:, -before[0].shape[1] :]
    return Change(attention, products, float((others - logits).abs().max() / logits.abs().max()))


def changes(subject: Subject, shift: int) -> dict[str, Change]:
    """The change for both kinds of shift: means over the subject's sequences, and the maximum for the logits.

    Raises UserError unless the shift is in 1 .. length - 1.
    """
    length = subject.tokens.shape[1]
    if not 1 <= shift < length:
        raise UserError(f"shift is {shift}, but the sequences have {length} tokens: give 1 to {length - 1}")
    positions = subject.positions(length)
    added = torch.full((1, shift), subject.bos)
    found: dict[str, list[Change]] = {ADDED: [], SHIFTED: []}
    for sequence in subject.tokens:  # one at a time, because the probabilities of a layer take [H, N, N]
        tokens = sequence[None]
        before = run(subject.model, tokens, positions)
        longer = run(subject.model, torch.cat([added, tokens], dim=1), subject.positions(length + shift))
        found[ADDED].append(compare(before, longer))
        found[SHIFTED].append(compare(before, run(subject.model, tokens, positions + shift)))
    return {kind: _mean(of_sequences) for kind, of_sequences in found.items()}


def _mean(of_sequences: list[Change]) -> Change:
    attention = zip(*(change.attention for change in of_sequences), strict=True)
    products = zip(*(change.dot_products for change in of_sequences), strict=True)
    return Change([*map(fmean, attention)], [*map(fmean, products)], max(change.logits for change in of_sequences))


def report(subjects: list[Subject], shift: int) -> Iterator[str]:
    """Yields the paragraphs of the study. Raises UserError as `changes` does."""
    yield "\n".join(subject.source for subject in subjects)
    sizes = dict.fromkeys("{} sequences of {} tokens".format(*subject.tokens.shape) for subject in subjects)
    yield f"{', '.join(sizes)}, float32 on a CPU, shift {shift}. The paper's shift is 3, on its 155M models."
    found = {subject.label: (subject, changes(subject, shift)) for subject in subjects}
    for title, of_paper, pick in (
        ("attention difference, 10^-2", SHIFT_ATTENTION, lambda change: change.attention),
        ("difference of position dot products, %", SHIFT_DOT_PRODUCTS, lambda change: change.dot_products),
    ):
        for kind in (ADDED, SHIFTED):
            rows = []
            for label, (subject, change) in found.items():
                values = pick(change[kind])
                rows.append([f"`{label}`", *[f"{100 * value:.3g}" for value in values]])
                paper = dict(zip(SHIFT_LAYERS, of_paper[kind].get(subject.model.config.encoding, ()), strict=False))
                if paper:
                    rows.append(["paper", *[str(paper.get(layer, "")) for layer in range(1, len(values) + 1)]])
            layers = max(subject.model.config.num_layers for subject in subjects)
            rows = [row + [""] * (1 + layers - len(row)) for row in rows]
            yield f"{kind}: {title}, by layer\n\n" + markdown(["", *map(str, range(1, layers + 1))], rows)
    rows = [
        [f"`{label}`", *[f"{change[kind].logits:.2g}" for kind in (ADDED, SHIFTED)]] for label, (_, change) in found.items()
    ]
    yield "largest difference of the logits over the largest logit\n\n" + markdown(["", ADDED, SHIFTED], rows)
