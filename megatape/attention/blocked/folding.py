"""Layout of queries, keys and values in blocked attention, which separates query heads sharing a key/value head.

Shapes as in model/transformer.py; W is the width of the position tensor e. G = H / L query heads share a key/value head. A
batch has S = B * L sequences of keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from megatape.attention.rotation import PositionState, rotate_qk


def score_scale(q: Tensor) -> float:
    """Return the factor 1 / sqrt(R) on the scores of queries [B, N, H, R]."""
    return q.shape[-1] ** -0.5


def fold(x: Tensor, num_groups: int) -> Tensor:
    """Rearrange [B, N, L * G, R] to [G, S, N, R], contiguous and in float32."""
    by_group = x.float().unflatten(2, (-1, num_groups))  # [B, N, L, G, R]
    return by_group.permute(3, 0, 2, 1, 4).flatten(1, 2).contiguous()


def unfold(x: Tensor, like: Tensor) -> Tensor:
    """Rearrange [G, S, N, R] to [B, N, L * G, R], contiguous: the inverse of `fold`. `like` has the same batch size B."""
    by_sample = x.unflatten(1, (like.shape[0], -1))  # [G, B, L, N, R]
    return by_sample.permute(1, 3, 2, 0, 4).flatten(2, 3).contiguous()


def split_v_and_e(values: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
    """Split [..., R + W] into the parts of v and of e. The second is None for [..., R]."""
    width = v.shape[-1]
    if values.shape[-1] == width:
        return values, None
    return values[..., :width], values[..., width:]


class Folded(NamedTuple):
    """Arguments of attention after their rotation, in float32.

    Attributes:
        queries: Scaled queries, [G, S, N, R].
        keys: Keys, [S, N, R].
        values: [v | e], [S, N, R + W], or v without e.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor


def fold_rotated(q: Tensor, k: Tensor, v: Tensor, e: Tensor | None) -> Folded:
    """Rotate queries and keys by e, and fold them with the values.

    Args:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        v: Values [B, N, L, R].
        e: Position tensor [B, N, L, W]. None to rotate nothing.
    """
    num_groups = q.shape[2] // k.shape[2]
    q = q.float()
    k = k.float()
    (values,) = fold(v, 1)
    if e is None:
        # May share memory with q, so do not scale in place.
        queries = fold(q, num_groups) * score_scale(q)
    else:
        q, k = rotate_qk(q, k, PositionState(e))
        (state_values,) = fold(e, 1)
        values = torch.cat([values, state_values], dim=-1)
        queries = fold(q, num_groups).mul_(score_scale(q))
    (keys,) = fold(k, 1)
    return Folded(queries, keys, values)
