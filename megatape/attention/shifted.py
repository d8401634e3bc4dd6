"""Shifted sparse attention (S2-Attn of LongLoRA, arXiv 2309.12307): a token sees the earlier tokens of its group only.

Groups have G tokens. For the first half of the model's key/value heads they begin at tokens 0, G, 2G, ..., for the second half
at 0, G/2, 3G/2, 5G/2, ..., so that groups which one layer keeps apart meet in the next. The authors roll the tokens of the
second half by G/2 instead. That joins the last G/2 tokens of a sample and its first ones in one group, where the first ones see
the last: the future. Here each of them is a group of its own.

Shapes as in model/transformer.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from megatape.attention.attend import Attend, attend
from megatape.attention.backend import DocumentStarts
from megatape.attention.rotation import PositionState, rotate_qk


@dataclass(frozen=True)
class ShiftedSparse:
    """Attention within groups of tokens, in the place of `attend`.

    Attributes:
        num_groups: N / G; N is a multiple of twice this number.
        num_unshifted: How many of this rank's key/value heads, the first ones, are in the first half of the model's.
        attend: Dense attention, which computes each group.
    """

    num_groups: int
    num_unshifted: int
    attend: Attend = attend

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        state: PositionState | None,
        bias: None,
        document_starts: DocumentStarts,
        move: bool,
    ) -> tuple[Tensor, None]:
        """`attend` within the groups, for encodings without a bias on scores and without a state that moves."""
        assert bias is None and not move  # the configuration checks it
        q, k = rotate_qk(q, k, state)
        size = q.shape[1] // self.num_groups
        repeats = q.shape[2] // k.shape[2]
        queries, keys, values = (
            heads.tensor_split([self.num_unshifted * count], dim=2) for heads, count in ((q, repeats), (k, 1), (v, 1))
        )
        halves = zip(queries, keys, values, (0, size // 2), strict=True)
        outputs = [self._attend_in_groups(*half, size, document_starts) for half in halves if half[0].numel()]
        return torch.cat(outputs, dim=2), None

    def _attend_in_groups(
        self, q: Tensor, k: Tensor, v: Tensor, first: int, size: int, document_starts: DocumentStarts
    ) -> Tensor:
        """Attention within groups of `size` tokens behind a group of `first` tokens; the last group has the rest.

        Groups of one size become samples of a batch, so any backend computes no more than their scores.
        """
        batch, length = q.shape[:2]
        lengths = [first, length - size, size - first] if first else [length]
        masks: tuple[DocumentStarts, ...] = (None,) * len(lengths)
        if document_starts is not None:
            tokens = torch.arange(length, device=q.device)
            begins = ((tokens - first) // size * size + first).clamp(min=0)  # of each token's group
            masks = (document_starts - begins).clamp(min=0).split(lengths, dim=1)
        outputs = []
        for *heads, seen in zip(*(x.split(lengths, dim=1) for x in (q, k, v)), masks, strict=True):
            queries, keys, values = (_folded(x, size) for x in heads)
            out, _ = self.attend(queries, keys, values, document_starts=None if seen is None else _folded(seen, size))
            outputs.append(out.unflatten(0, (batch, -1)).flatten(1, 2))
        return torch.cat(outputs, dim=1)


def num_pairs(length: int, num_groups: int) -> int:
    """Pairs of a query and a key in one group, the mean of both halves of the heads; in dense attention there are N^2."""
    size = length // num_groups
    return length * size - (size // 2) ** 2


def _folded(x: Tensor, size: int) -> Tensor:
    """[B, n, ...] -> [B n / size, size, ...]; as it is if n is less than `size`."""
    return x.unflatten(1, (-1, min(size, x.shape[1]))).flatten(0, 1)
