"""Causal attention on GPUs by torch's flex_attention, compiled: with a bias by distance, and within documents.

Shapes as in model/transformer.py.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from megatape.attention.backend import AttentionRequirements, Backend, DocumentStarts
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.attention.fused_rotation import rotated_heads
from megatape.attention.rotation import PositionState
from megatape.attention.split_values import attend_v_and_e
from megatape.utils.torch_internals import limit_recompilations

MIN_HEAD_DIM = 16  # the compiler refuses smaller heads
BLOCK = 128  # tokens; the kernels skip what a mask hides in blocks of this size

# torch chooses tiles by the width of the queries alone. With wider values those of the forward pass spill registers, so it gets
# the tiles of heads as wide as the values.
WIDER_VALUES = {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "fwd_num_warps": 8}
# Nor does it count the bias: a stage of the pipeline holds one in float32 for each score, and three stages need more shared
# memory than an H100 has.
BIASED = {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "fwd_num_stages": 2, "bwd_num_stages": 2}


class Flex(Backend):
    """Supports masks, and a bias by distance, a lookup that the compiler fuses into the scores.

    It refuses a bias by pair: every weight of its network contributes to every score, so the fused
    gradient would be one atomic addition per weight and score.
    """

    def unsupported_reason(self, requirements: AttentionRequirements) -> str | None:
        if requirements.bias == "pair":
            return "computes no bias of pairs of tokens"
        if requirements.device_type != "cuda":
            return f"is compiled for GPUs, and the device is {requirements.device_type!r}"
        if requirements.head_dim < MIN_HEAD_DIM:
            return f"needs a head_dim of at least {MIN_HEAD_DIM}, and model.head_dim is {requirements.head_dim}"
        return super().unsupported_reason(requirements)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: PositionState | None,
        bias: ScoreBias | None,
        document_starts: DocumentStarts,
        move: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """A state takes one call over [v | e], or several."""
        q, k, e = rotated_heads(q, k, state, move)
        return attend_v_and_e(v, e, lambda values: flex_values(q, k, values, bias, document_starts))


def flex_values(q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, document_starts: DocumentStarts) -> Tensor:
    """A v [B, N, H, W] of q [B, N, H, R], k [B, N, L, R] and v [B, N, L, W]; document_starts: [B, N] or None.

    The kernel looks the bias up as it computes a score and skips masked blocks, so nothing of size N x N exists. On a CPU,
    where tests run it, the same code is not compiled and does make an N x N tensor.
    """
    biased: Callable[..., Tensor] | None = None
    if bias is not None:
        assert isinstance(bias, DistanceBias)
        (by_distance,) = bias.weights

        def biased(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return score + by_distance[head, (row - column).abs()]  # later tokens are masked, but looked up too

    queries, keys, values = (part.transpose(1, 2) for part in (q, k, v))
    if q.is_meta:  # on which flex_attention does not run: this operator reads, writes and keeps the same
        added = None if bias is None else bias.weights[0][:, None].to(q.dtype)
        out = F.scaled_dot_product_attention(queries, keys, values, added, is_causal=bias is None, enable_gqa=True)
        return out.transpose(1, 2)
    blocks = _causal(q.shape[1], q.device) if document_starts is None else _documents(document_starts, document_starts._version)
    tiles = BIASED if bias is not None else WIDER_VALUES if v.shape[-1] > q.shape[-1] else {}
    # Within a block that is compiled, it is compiled with it.
    attend: Any = _compiled() if q.is_cuda and not torch.compiler.is_compiling() else flex_attention
    out = attend(
        queries,
        keys,
        values,
        score_mod=biased,
        block_mask=blocks,
        enable_gqa=q.shape[2] != k.shape[2],
        kernel_options=tiles if v.dtype.itemsize == 2 else None,  # float32 has small tiles
    )
    return out.transpose(1, 2)


@cache
def _compiled() -> Callable[..., Any]:
    """Flex attention, compiled for each shape.

    A run has few shapes: kernels for any length are slower, and torch makes them at the second length that it sees. What cannot
    be compiled is an error, because uncompiled it would be N x N.
    """
    limit_recompilations()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@cache
def _causal(length: int, device: torch.device) -> BlockMask:
    def seen(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return column <= row

    return _block_mask(torch.zeros(1, length, dtype=torch.long, device=device), seen)


@lru_cache(maxsize=1)  # all layers get the same tensor; tensors are compared by identity
def _documents(document_starts: Tensor, version: int) -> BlockMask:
    """document_starts: [B, N], first token that each token may see; version: counts its changes in place."""

    def seen(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (column >= document_starts[batch, row])

    return _block_mask(document_starts, seen)


def _block_mask(document_starts: Tensor, seen: Callable[..., Tensor]) -> BlockMask:
    """What torch's create_block_mask gives for `seen`, which would look at all N x N pairs on the way.

    Keys of a block are hidden from all queries of a block if they come later, or before the documents of all of them.
    """
    length = document_starts.shape[1]
    blocks = -(-length // BLOCK)
    last = document_starts[:, -1:].expand(-1, blocks * BLOCK - length)
    starts = torch.cat([document_starts, last], dim=1).unflatten(1, (blocks, BLOCK))
    index = torch.arange(blocks, device=document_starts.device)
    earlier = index < index[:, None]
    first = index * BLOCK
    any_seen = (index <= index[:, None]) & (starts.amin(-1)[..., None] < first + BLOCK)  # [B, blocks, blocks]
    all_seen = earlier & (starts.amax(-1)[..., None] <= first)
    if length % BLOCK:  # the last block of queries has fewer, and torch calls no such block full
        all_seen = all_seen & (index < blocks - 1)[:, None]
    partial, full = (_ordered(chosen[:, None]) for chosen in (any_seen & ~all_seen, all_seen))
    return BlockMask.from_kv_blocks(*partial, *full, BLOCK_SIZE=BLOCK, mask_mod=seen, seq_lengths=(length, length))


def _ordered(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys are chosen in each row [B, 1, blocks], and their numbers, those not chosen after them."""
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.int().contiguous()
