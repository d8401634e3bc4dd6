"""Attention by PyTorch's scaled dot product attention; also the reference for the other backends.

Shapes as in model/block.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import rotate


def sdpa_moving_attention(q: Tensor, k: Tensor, v: Tensor, e: Tensor, document_starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """`attend_and_move` by one call of PyTorch's scaled dot product attention over [v | e]; also the reference for the kernels."""
    values = torch.cat([v, e.to(v.dtype)], dim=-1)
    out = sdpa_attention(rotate(q, e).to(v.dtype), rotate(k, e).to(v.dtype), values, None, document_starts)
    return out[..., : v.shape[-1]], out[..., v.shape[-1] :]


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, document_starts: Tensor | None) -> Tensor:
    """`attend` by PyTorch's scaled dot product attention. With a bias it holds N x N numbers: only as a reference for the kernels."""
    groups, length = q.shape[2] // k.shape[2], q.shape[1]
    # [B, heads, N, .]; keys and values are repeated because not every backend of SDPA knows grouped queries.
    queries, keys, values = (part.transpose(1, 2) for part in (q, k, v))
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    mask = None if document_starts is None else visible(document_starts)[:, None]
    if bias is not None:
        if mask is None:
            mask = visible(torch.zeros(1, length, dtype=torch.long, device=q.device))[:, None]
        mask = bias.block(bias.weights, slice(0, length), slice(0, length)).masked_fill(~mask, float("-inf")).to(q.dtype)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None).transpose(1, 2)


def visible(document_starts: Tensor) -> Tensor:
    """[B, N, N] mask, true where a query (row) may see a key: not later than itself, not before its document's start."""
    index = torch.arange(document_starts.shape[1], device=document_starts.device)
    return (index <= index[:, None]) & (index >= document_starts[..., None])
