"""One causal attention over content and, where an encoding asks for it, the position state; picks the backend.

Shapes as in model/block.py.
"""

from typing import Literal

from torch import Tensor

from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.attention.blocked import blocked_attention, blocked_biased_attention
from megatape.attention.flex import MIN_HEAD_DIM, flex_biased_attention
from megatape.attention.sdpa import sdpa_attention, sdpa_moving_attention

# What an encoding asks of attention: nothing, that its weights move the state too, or a bias on the scores of pairs of tokens (which
# may be a function of their distance alone). It decides which backend runs.
Attends = Literal["plain", "moving", "distance bias", "pair bias"]


def backend(device_type: str, attends: Attends, head_dim: int) -> str:
    """Name of the attention that runs on this kind of device.

    A bias by distance is a lookup, which flex_attention fuses on a GPU. In a bias by pairs every number of its network takes part in
    every score: fused, its gradient would be one atomic addition for each of them, so it goes by blocks there too."""
    if attends == "plain":
        return "sdpa"
    if device_type == "cpu" or attends == "pair bias":
        return "blocked"
    if attends == "moving":
        return "sdpa"
    return "flex" if head_dim >= MIN_HEAD_DIM else "blocked"


def attend_and_move(q: Tensor, k: Tensor, v: Tensor, e: Tensor, document_starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Causal attention with q [B, N, H, R] and k [B, N, L, R] rotated by e [B, N, L, W], over v and e.

    Returns A v [B, N, H, R] and A e [B, N, H, W] in the dtype of v."""
    if backend(q.device.type, "moving", q.shape[-1]) == "blocked":
        return blocked_attention(q, k, v, e, document_starts)
    return sdpa_moving_attention(q, k, v, e, document_starts)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, document_starts: Tensor | None) -> Tensor:
    """Causal attention of q [B, N, H, R] and k, v [B, N, L, R] with a bias on the scores, or without.

    Returns A v [B, N, H, R] in the dtype of v."""
    if bias is None:
        return sdpa_attention(q, k, v, None, document_starts)
    kind = backend(q.device.type, "distance bias" if isinstance(bias, DistanceBias) else "pair bias", q.shape[-1])
    if kind == "flex" and isinstance(bias, DistanceBias):
        return flex_biased_attention(q, k, v, bias, document_starts)
    return (
        blocked_biased_attention(q, k, v, bias, document_starts)
        if kind == "blocked"
        else sdpa_attention(q, k, v, bias, document_starts)
    )
