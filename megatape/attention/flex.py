"""Causal attention with a bias by distance as a modification of the scores, for GPUs: torch's flex_attention, compiled.

Shapes as in model/block.py.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from megatape.attention.bias import DistanceBias

MIN_HEAD_DIM = 16  # head_dim below which the compiler refuses


def flex_biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: DistanceBias, document_starts: Tensor | None) -> Tensor:
    """q: [B, N, H, R]; k, v: [B, N, L, R]; document_starts: [B, N] or None. Returns A v [B, N, H, R].

    The bias is looked up where a score is computed and masked blocks are skipped: nothing of size N x N exists. Off a GPU the same
    runs uncompiled, with such a tensor, to be tested."""
    (by_distance,) = bias.weights

    def biased(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return score + by_distance[head, (row - column).abs()]  # later tokens are masked, but looked up all the same

    mask = _causal(q.shape[1], q.device) if document_starts is None else _documents(document_starts)
    queries, keys, values = (part.transpose(1, 2) for part in (q, k, v))
    attend: Any = _compiled() if q.is_cuda else flex_attention
    out = attend(queries, keys, values, score_mod=biased, block_mask=mask, enable_gqa=q.shape[2] != k.shape[2])
    return out.transpose(1, 2)


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention)


@cache
def _causal(length: int, device: torch.device) -> BlockMask:
    def seen(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return column <= row

    return create_block_mask(seen, None, None, length, length, device=str(device))


def _documents(document_starts: Tensor) -> BlockMask:
    """document_starts: [B, N], first token that each token may see."""

    def seen(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (column >= document_starts[batch, row])

    size, length = document_starts.shape
    return create_block_mask(seen, size, None, length, length, device=str(document_starts.device))
