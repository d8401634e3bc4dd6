"""Attention by PyTorch's scaled dot product attention, which is also the reference for the other backends.

Shapes as in model/transformer.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import Backend, Need, Sizes
from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import rotate_by_state

# Heads up to which one call takes values of twice the width. Beyond it cuDNN takes the forward pass and has no backward pass.
WIDEST_JOINED = 64


class Sdpa(Backend):
    """Plain attention on any device; on a GPU also attention over values wider than the keys, [v | e]."""

    def refusal(self, need: Need) -> str | None:
        if need.attends in ("distance bias", "pair bias"):
            return "would materialize the bias of all pairs of tokens"
        if need.attends == "moving" and need.device_type == "cpu":
            return "would materialize the weights of all pairs of tokens: it has no CPU kernel for values wider than the keys"
        return None

    def copied_bytes(self, sizes: Sizes) -> int:
        """Queries and keys rotated and repeated, values repeated, e itself beside what was added to it."""
        values, kept = sizes.head_dim + sizes.state_width, sizes.channels * sizes.head_dim
        return sizes.tokens * (sizes.heads * (2 * sizes.head_dim + values) - kept) * sizes.element_bytes

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, document_starts: Tensor | None) -> Tensor:
        return sdpa_attention(q, k, v, bias, document_starts)

    def attend_and_move(
        self, q: Tensor, k: Tensor, v: Tensor, initial: Tensor, moved: Tensor | None, document_starts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return sdpa_moving_attention(q, k, v, initial, moved, document_starts)


def sdpa_moving_attention(
    q: Tensor, k: Tensor, v: Tensor, initial: Tensor, moved: Tensor | None, document_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One call over [v | e], or one over each; arguments and results as in Backend.attend_and_move."""
    q, k, e = rotate_by_state(q, k, initial, moved)
    if v.shape[-1] > WIDEST_JOINED:
        content, attended_positions = (sdpa_attention(q, k, values, None, document_starts) for values in (v, e))
        return content, attended_positions
    out = sdpa_attention(q, k, torch.cat([v, e], dim=-1), None, document_starts)
    return out[..., : v.shape[-1]], out[..., v.shape[-1] :]


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, document_starts: Tensor | None) -> Tensor:
    """Arguments and result as in Backend.attend. With a bias it holds N x N scores, so that is for
    tests of other backends only."""
    groups, length = q.shape[2] // k.shape[2], q.shape[1]
    # [B, heads, N, .]; keys and values are repeated because not every SDPA kernel supports grouped queries.
    queries, keys, values = (part.transpose(1, 2) for part in (q, k, v))
    if groups > 1:
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    mask = None if document_starts is None else visible(document_starts)[:, None]
    if bias is not None:
        if mask is None:
            mask = visible(torch.zeros(1, length, dtype=torch.long, device=q.device))[:, None]
        mask = bias.block(bias.weights, slice(0, length), slice(0, length)).masked_fill(~mask, float("-inf")).to(q.dtype)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None).transpose(1, 2)


def visible(document_starts: Tensor) -> Tensor:
    """[B, N, N] mask, true where a query (row) may see a key: one of its own document, not later than itself."""
    index = torch.arange(document_starts.shape[1], device=document_starts.device)
    return (index <= index[:, None]) & (index >= document_starts[..., None])
