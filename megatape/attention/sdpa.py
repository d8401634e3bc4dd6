"""Attention by PyTorch's scaled dot product attention, which is also the reference for the other backends.

Shapes as in model/transformer.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import Backend, Need, Sizes
from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import rotate_by_state
from megatape.attention.wide import attend_to_both, kept_bytes

ALIGNMENT = 16  # bytes: kernels on a GPU load heads in such pieces


class Sdpa(Backend):
    """Plain attention on any device; on a GPU also attention over values wider than the keys, [v | e]. No masks on a GPU."""

    def refusal(self, need: Need) -> str | None:
        if need.attends in ("distance bias", "pair bias"):
            return "would materialize the bias of all pairs of tokens"
        if need.attends == "moving" and need.device_type == "cpu":
            return "would materialize the weights of all pairs of tokens: it has no CPU kernel for values wider than the keys"
        if need.device_type == "cuda" and need.masked:
            return "would materialize the mask of all pairs of tokens, which data.mask_documents needs"
        if need.device_type == "cuda" and need.head_dim * need.dtype.itemsize % ALIGNMENT:
            return (
                f"would materialize the weights of all pairs of tokens: its kernels need heads of a multiple of {ALIGNMENT} "
                f"bytes, and model.head_dim is {need.head_dim}"
            )
        return None

    def copied_bytes(self, sizes: Sizes) -> int:
        """Keys and values repeated; where the state moves also queries and keys rotated, and e beside what was added to it."""
        size, width = sizes.head_dim, sizes.state_width
        repeated = 2 * (sizes.heads - sizes.channels) * size * sizes.tokens * sizes.element_bytes
        if not width:
            return repeated
        rotated = (sizes.heads * (size + width) + sizes.channels * size) * sizes.tokens * sizes.element_bytes
        return repeated + rotated + kept_bytes(sizes)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, document_starts: Tensor | None) -> Tensor:
        return sdpa_attention(q, k, v, bias, document_starts)

    def attend_and_move(
        self, q: Tensor, k: Tensor, v: Tensor, initial: Tensor, moved: Tensor | None, document_starts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return sdpa_moving_attention(q, k, v, initial, moved, document_starts)


def sdpa_moving_attention(
    q: Tensor, k: Tensor, v: Tensor, initial: Tensor, moved: Tensor | None, document_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One call over [v | e], or several; arguments and results as in Backend.attend_and_move."""
    q, k, e = rotate_by_state(q, k, initial, moved)
    queries, keys = q.transpose(1, 2), _repeated(k, q)
    mask = _mask(document_starts)
    return attend_to_both(v, e, lambda values: _sdpa(queries, keys, _repeated(values, q), mask))


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, document_starts: Tensor | None) -> Tensor:
    """Arguments and result as in Backend.attend. With a bias it holds N x N scores, so that is for
    tests of other backends only."""
    length, mask = q.shape[1], _mask(document_starts)
    if bias is not None:
        if mask is None:
            mask = visible(torch.zeros(1, length, dtype=torch.long, device=q.device))[:, None]
        mask = bias.block(bias.weights, slice(0, length), slice(0, length)).masked_fill(~mask, float("-inf")).to(q.dtype)
    return _sdpa(q.transpose(1, 2), _repeated(k, q), _repeated(v, q), mask)


def _sdpa(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """[B, N, H, .] from [B, H, N, .]; without a mask each token sees the earlier ones."""
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None).transpose(1, 2)


def _repeated(heads: Tensor, q: Tensor) -> Tensor:
    """[B, N, L, .] -> [B, H, N, .], for each query head, because not every SDPA kernel supports grouped queries."""
    groups = q.shape[2] // heads.shape[2]
    heads = heads.transpose(1, 2)
    return heads.repeat_interleave(groups, 1) if groups > 1 else heads


def _mask(document_starts: Tensor | None) -> Tensor | None:
    """[B, 1, N, N]."""
    return None if document_starts is None else visible(document_starts)[:, None]


def visible(document_starts: Tensor) -> Tensor:
    """[B, N, N] mask, true where a query (row) may see a key: one of its own document, not later than itself."""
    index = torch.arange(document_starts.shape[1], device=document_starts.device)
    return (index <= index[:, None]) & (index >= document_starts[..., None])
