"""Causal attention with a bias by distance as a modification of the scores, for GPUs: torch's flex_attention, compiled.

Shapes as in model/block.py.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from megatape.attention.backend import Backend, Need
from megatape.attention.bias import DistanceBias, ScoreBias

MIN_HEAD_DIM = 16  # head_dim below which the compiler refuses


class Flex(Backend):
    """A bias by distance is a lookup, which the compiler fuses into the scores.

    Not a bias by pairs: every number of its network takes part in every score, and fused, its gradient would be one atomic addition
    for each of them."""

    def refusal(self, need: Need) -> str | None:
        if need.attends != "distance bias":
            return f"knows biases by distance only, and the encoding asks for attention that is {need.attends}"
        if need.device_type != "cuda":
            return f"is compiled for GPUs, and the device is a {need.device_type}"
        if need.head_dim < MIN_HEAD_DIM:
            return f"needs a head_dim of at least {MIN_HEAD_DIM}, and model.head_dim is {need.head_dim}"
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, document_starts: Tensor | None) -> Tensor:
        assert isinstance(bias, DistanceBias)
        return flex_biased_attention(q, k, v, bias, document_starts)


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
