"""Collectives of tensor parallelism as conjugate autograd pairs: what one direction gathers, the other one sums and scatters.

B batch, N tokens, T tensor-parallel ranks. Every function is the identity at T = 1.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.parallel.mesh import Axis


def gather_tokens(x: Tensor, axis: Axis) -> Tensor:
    """[B, N/T, ...] -> [B, N, ...], every rank's tokens in order. Backward: reduce-scatter."""
    return x if axis.size == 1 else _Pair.apply(x, axis, all_gather, reduce_scatter)


def scatter_sum_tokens(x: Tensor, axis: Axis) -> Tensor:
    """[B, N, ...] partial sums -> [B, N/T, ...], the sum over ranks of this rank's tokens. Backward: all-gather."""
    return x if axis.size == 1 else _Pair.apply(x, axis, reduce_scatter, all_gather)


def tokens_to_channels(e: Tensor, axis: Axis) -> Tensor:
    """All channels of a share of the tokens -> all tokens of a share of the channels, [B, N/T, L, W] -> [B, N, L/T, W].

    Backward: channels_to_tokens."""
    return e if axis.size == 1 else _Pair.apply(e, axis, _to_channels, _to_tokens)


def channels_to_tokens(e: Tensor, axis: Axis) -> Tensor:
    """The inverse of tokens_to_channels: [B, N, L/T, W] -> [B, N/T, L, W]. Backward: tokens_to_channels."""
    return e if axis.size == 1 else _Pair.apply(e, axis, _to_tokens, _to_channels)


def replicated(parameter: Tensor, axis: Axis) -> Tensor:
    """A parameter that all ranks hold and each uses on its own tokens or heads. Backward: all-reduce of its gradient."""
    return parameter if axis.size == 1 else _Pair.apply(parameter, axis, lambda x, _: x.view_as(x), all_reduce)


def own_tokens(x: Tensor, axis: Axis) -> Tensor:
    """This rank's share [B, N/T] of something [B, N] that all ranks hold and that takes no gradient."""
    return x if axis.size == 1 else x.chunk(axis.size, dim=1)[axis.rank]


def own_rows(ids: Tensor, num_rows: int, axis: Axis) -> tuple[Tensor, Tensor]:
    """Where ids of a divided vocabulary lie among the `num_rows` rows of this rank, and whether they do; others point to row 0."""
    rows = ids - axis.rank * num_rows
    mine = (rows >= 0) & (rows < num_rows) & (ids >= 0)
    return rows.where(mine, 0), mine


class _Pair(torch.autograd.Function):
    """One collective forward and its conjugate backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, there: Callable[..., Tensor], back: Callable[..., Tensor]) -> Tensor:
        ctx.axis, ctx.back = axis, back
        return there(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(grad, ctx.axis), None, None, None


# What follows has no gradient. Collectives work on the leading dimension: pieces are stacked there and moved to their place.


def every_rank(x: Tensor, axis: Axis) -> Tensor:
    """[...] of each rank -> [T, ...] on all ranks."""
    if axis.size == 1:
        return x[None]
    stacked = x.new_empty(axis.size, *x.shape)
    dist.all_gather_into_tensor(stacked.flatten(0, 1), x.contiguous(), group=axis.group)
    return stacked


def all_gather(x: Tensor, axis: Axis) -> Tensor:
    """[B, N/T, ...] -> [B, N, ...], every rank's tokens in order."""
    return x if axis.size == 1 else every_rank(x, axis).transpose(0, 1).flatten(1, 2).contiguous()


def reduce_scatter(x: Tensor, axis: Axis) -> Tensor:
    """[B, N, ...] -> [B, N/T, ...], the sum over ranks of this rank's tokens."""
    if axis.size == 1:
        return x
    stacked = x.unflatten(1, (axis.size, -1)).transpose(0, 1).contiguous()
    own = torch.empty_like(stacked[0])
    dist.reduce_scatter_tensor(own, stacked.flatten(0, 1), group=axis.group)
    return own


def all_reduce(x: Tensor, axis: Axis) -> Tensor:
    """The sum over ranks."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=axis.group)
    return total


def _to_channels(e: Tensor, axis: Axis) -> Tensor:
    sent = e.unflatten(2, (axis.size, -1)).permute(2, 0, 1, 3, 4).contiguous()  # [T, B, N/T, L/T, W]
    return _all_to_all(sent, axis).transpose(0, 1).flatten(1, 2).contiguous()


def _to_tokens(e: Tensor, axis: Axis) -> Tensor:
    sent = e.unflatten(1, (axis.size, -1)).transpose(0, 1).contiguous()  # [T, B, N/T, L/T, W]
    return _all_to_all(sent, axis).permute(1, 2, 0, 3, 4).flatten(2, 3).contiguous()


def _all_to_all(sent: Tensor, axis: Axis) -> Tensor:
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=axis.group)
    return received
