"""Shifted sparse attention (S2-Attn of LongLoRA, arXiv 2309.12307): a token only sees earlier tokens in its group.

Groups have G tokens. For the first half of the model's key/value heads they begin at tokens 0, G, 2G, ..., for the second half
at 0, G/2, 3G/2, 5G/2, ..., so information crosses group borders in the next layer. The authors instead roll the second half's
tokens by G/2. That puts the last G/2 tokens of a sample into one group with its first tokens, which then see the future. Here
both are separate groups.

Shapes as in model/transformer.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from megatape.attention.attend import Attend, attend
from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.distributed.mesh import Axis


@dataclass(frozen=True)
class ShiftedSparse:
    """Attention within groups of tokens, replacing `attend`.

    Attributes:
        num_groups: Number of groups N / G. N is a multiple of twice this number.
        num_unshifted: Number of key/value heads on this rank belonging to the first half (`num_unshifted_heads`). They come
            first.
        attend: Dense attention for computing each group.
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
        bias: ScoreBias | None,
        document_starts: DocumentStarts,
        averages_state: bool,
        window: int | None = None,
    ) -> tuple[Tensor, None]:
        """Compute attention within groups. Same arguments as `attend`, but no bias, no moving state and no window."""
        # The configuration refuses windows, and encodings with a bias or a moving state.
        assert bias is None and not averages_state and window is None
        q, k = rotate_qk(q, k, state)
        group_size = q.shape[1] // self.num_groups
        query_heads_per_channel = q.shape[2] // k.shape[2]
        q_unshifted, q_shifted = q.tensor_split([self.num_unshifted * query_heads_per_channel], dim=2)
        k_unshifted, k_shifted = k.tensor_split([self.num_unshifted], dim=2)
        v_unshifted, v_shifted = v.tensor_split([self.num_unshifted], dim=2)

        # A tensor-parallel rank may only have heads from one half.
        outputs = []
        if q_unshifted.numel():
            outputs.append(self._attend_in_groups(q_unshifted, k_unshifted, v_unshifted, 0, group_size, document_starts))
        if q_shifted.numel():
            first_size = group_size // 2
            outputs.append(self._attend_in_groups(q_shifted, k_shifted, v_shifted, first_size, group_size, document_starts))
        return torch.cat(outputs, dim=2), None

    def _attend_in_groups(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        first_size: int,
        group_size: int,
        document_starts: DocumentStarts,
    ) -> Tensor:
        """Compute attention within groups, [B, N, heads, R].

        Groups of equal size become samples in a batch, so no backend computes scores across groups.

        Args:
            q: Rotated queries [B, N, heads, R].
            k: Rotated keys.
            v: Values.
            first_size: Tokens in the first group, 0 for groups of equal size.
            group_size: Tokens per following group. The last group has the remaining tokens.
            document_starts: Index of the first token of each token's document, [B, N], or None.
        """
        batch_size, length = q.shape[:2]
        # The first group and the last one are shorter than the others, unless all groups are of equal size.
        lengths = [length]
        if first_size:
            last_size = group_size - first_size
            lengths = [first_size, length - group_size, last_size]
        starts_in_groups: tuple[DocumentStarts, ...] = (None,) * len(lengths)
        if document_starts is not None:
            tokens = torch.arange(length, device=q.device)
            group_starts = (tokens - first_size) // group_size * group_size + first_size
            group_starts = group_starts.clamp(min=0)
            starts_in_groups = (document_starts - group_starts).clamp(min=0).split(lengths, dim=1)

        outputs = []
        parts = zip(
            q.split(lengths, dim=1),
            k.split(lengths, dim=1),
            v.split(lengths, dim=1),
            starts_in_groups,
            strict=True,
        )
        for queries, keys, values, starts in parts:
            folded_starts = None
            if starts is not None:
                folded_starts = _fold_groups(starts, group_size)
            out, _ = self.attend(
                _fold_groups(queries, group_size),
                _fold_groups(keys, group_size),
                _fold_groups(values, group_size),
                state=None,
                bias=None,
                document_starts=folded_starts,
                averages_state=False,
                window=None,
            )
            outputs.append(out.unflatten(0, (batch_size, -1)).flatten(1, 2))
        return torch.cat(outputs, dim=1)


def num_unshifted_heads(num_kv_heads: int, tensor_axis: Axis, sequence_axis: Axis) -> int:
    """Return the number of unshifted key/value heads on this rank. They come first.

    Shifted heads are the second half of the whole model's heads, independent of how ranks distribute them.
    """
    num_own = num_kv_heads // (tensor_axis.size * sequence_axis.size)
    first = (tensor_axis.rank * sequence_axis.size + sequence_axis.rank) * num_own
    return min(max(num_kv_heads // 2 - first, 0), num_own)


def num_pairs(length: int, num_groups: int) -> int:
    """Return the number of (query, key) pairs within groups, averaged over both halves of the heads.

    Dense attention has N^2 pairs.
    """
    group_size = length // num_groups
    return length * group_size - (group_size // 2) ** 2


def _fold_groups(x: Tensor, group_size: int) -> Tensor:
    """Turn groups into samples, [B, n, ...] -> [B n / group_size, group_size, ...]. A smaller n is a single group."""
    size = min(group_size, x.shape[1])
    return x.unflatten(1, (-1, size)).flatten(0, 1)
