"""Causal attention with a bias by distance, on GPUs: torch's flex_attention, compiled.

Shapes as in model/transformer.py.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from megatape.attention.backend import Backend, Need
from megatape.attention.bias import DistanceBias, ScoreBias

MIN_HEAD_DIM = 16  # the compiler refuses smaller heads


class Flex(Backend):
    """Supports a bias by distance, a lookup that the compiler fuses into the scores.

    It refuses a bias by pair: every weight of its network contributes to every score, so the fused
    gradient would be one atomic addition per weight and score."""

    def refusal(self, need: Need) -> str | None:
        if need.attends != "distance bias":
            return f"supports a bias by distance only, and the encoding needs {need.attends!r}"
        if need.device_type != "cuda":
            return f"is compiled for GPUs, and the device is {need.device_type!r}"
        if need.head_dim < MIN_HEAD_DIM:
            return f"needs a head_dim of at least {MIN_HEAD_DIM}, and model.head_dim is {need.head_dim}"
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, document_starts: Tensor | None) -> Tensor:
        assert isinstance(bias, DistanceBias)
        return flex_biased_attention(q, k, v, bias, document_starts)


def flex_biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: DistanceBias, document_starts: Tensor | None) -> Tensor:
    """q: [B, N, H, R]; k, v: [B, N, L, R]; document_starts: [B, N] or None. Returns A v [B, N, H, R].

    The kernel looks the bias up as it computes a score and skips masked blocks, so nothing of size N x N exists. On a CPU,
    where tests run it, the same code is not compiled and does make an N x N tensor."""
    (by_distance,) = bias.weights

    def biased(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return score + by_distance[head, (row - column).abs()]  # later tokens are masked, but looked up too

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
