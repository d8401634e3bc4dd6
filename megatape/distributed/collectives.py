"""Collectives inside the model, and pairs of them: the backward pass sums and scatters what the forward pass gathers.

Computation waits for these; asynchronous.py has the collectives that overlap with it.

Shapes as in model/transformer.py, where T is the size of any axis. Every function but `every_rank` is the identity at T = 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.mesh import Axis

Collective = Callable[[Tensor, Axis], Tensor]


def gather_tokens(x: Tensor, axis: Axis) -> Tensor:
    """[B, N/T, ...] -> [B, N, ...], every rank's tokens in order. Backward: reduce-scatter."""
    return paired(x, axis, all_gather, reduce_scatter)


def scatter_sum_tokens(x: Tensor, axis: Axis) -> Tensor:
    """[B, N, ...] partial sums -> [B, N/T, ...], the sum over ranks of this rank's tokens. Backward: all-gather."""
    return paired(x, axis, reduce_scatter, all_gather)


def paired(x: Tensor, axis: Axis, forward: Collective, backward: Collective) -> Tensor:
    """Return forward(x, axis). `backward` turns its gradient into that of x."""
    if axis.size == 1:
        return x
    return _Pair.apply(x, axis, forward, backward)


class _Pair(torch.autograd.Function):
    """One collective forward and its conjugate backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, forward: Collective, backward: Collective) -> Tensor:
        ctx.axis = axis
        ctx.backward_collective = backward
        return forward(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.backward_collective(grad, ctx.axis), None, None, None


# The functions below have no gradient. torch's collectives work on the leading dimension: pieces
# are stacked there, then moved.


def every_rank(x: Tensor, axis: Axis) -> Tensor:
    """[...] of each rank -> [T, ...] on all ranks."""
    if axis.size == 1:
        return x[None]
    stacked = x.new_empty(axis.size, *x.shape)
    dist.all_gather_into_tensor(stacked.flatten(0, 1), x.contiguous(), group=axis.group)
    return stacked


def all_gather(x: Tensor, axis: Axis) -> Tensor:
    """[B, N/T, ...] -> [B, N, ...], every rank's tokens in order."""
    if axis.size == 1:
        return x
    return every_rank(x, axis).transpose(0, 1).flatten(1, 2).contiguous()


def reduce_scatter(x: Tensor, axis: Axis) -> Tensor:
    """[B, N, ...] -> [B, N/T, ...], the sum over ranks of this rank's tokens."""
    if axis.size == 1:
        return x
    stacked = x.unflatten(1, (axis.size, -1)).transpose(0, 1).contiguous()
    own = torch.empty_like(stacked[0])
    dist.reduce_scatter_tensor(own, stacked.flatten(0, 1), group=axis.group)
    return own


def all_to_all(x: Tensor, axis: Axis) -> Tensor:
    """[T, ...], a piece for each rank -> [T, ...], the pieces of all ranks for this one. It is its own inverse."""
    sent = x.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=axis.group)
    return received


@dataclass(frozen=True)
class Pieces:
    """A way to divide a tensor into one piece for each of T ranks.

    Attributes:
        split: Function from a tensor and T to the pieces [T, ...].
        join: The inverse of `split`. Returns a copy.
    """

    split: Callable[[Tensor, int], Tensor]
    join: Callable[[Tensor], Tensor]
