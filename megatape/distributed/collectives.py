"""Blocking collectives of the model, with gradients: where the forward pass gathers, the backward pass reduces and scatters.

asynchronous.py has collectives that overlap with computation.

Shapes as in model/transformer.py, but T is the size of any axis. With a single rank, all functions are the identity, except
that `every_rank` adds a dimension.
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
    """Gather all ranks' tokens in order, [B, N/T, ...] -> [B, N, ...]. Backward: reduce-scatter."""
    return paired(x, axis, all_gather, reduce_scatter)


def scatter_sum_tokens(x: Tensor, axis: Axis) -> Tensor:
    """Sum all ranks' partial results for this rank's tokens, [B, N, ...] -> [B, N/T, ...]. Backward: all-gather."""
    return paired(x, axis, reduce_scatter, all_gather)


def paired(x: Tensor, axis: Axis, forward: Collective, backward: Collective) -> Tensor:
    """Return forward(x, axis), whose gradient passes through `backward`."""
    if axis.size == 1:
        return x
    return _Pair.apply(x, axis, forward, backward)


class _Pair(torch.autograd.Function):
    """A collective in the forward pass, and another one in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, forward: Collective, backward: Collective) -> Tensor:
        ctx.axis = axis
        ctx.backward_collective = backward
        return forward(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.backward_collective(grad, ctx.axis), None, None, None


# The functions below have no gradient. torch's collectives stack pieces in the leading dimension, so dimensions are moved.


def every_rank(x: Tensor, axis: Axis) -> Tensor:
    """Stack the tensors of all ranks, [...] -> [T, ...]."""
    if axis.size == 1:
        return x[None]
    stacked = x.new_empty(axis.size, *x.shape)
    dist.all_gather_into_tensor(stacked.flatten(0, 1), x.contiguous(), group=axis.group)
    return stacked


def all_gather(x: Tensor, axis: Axis) -> Tensor:
    """Gather all ranks' tokens in order, [B, N/T, ...] -> [B, N, ...]."""
    if axis.size == 1:
        return x
    return every_rank(x, axis).transpose(0, 1).flatten(1, 2).contiguous()


def reduce_scatter(x: Tensor, axis: Axis) -> Tensor:
    """Sum over ranks, and return this rank's tokens, [B, N, ...] -> [B, N/T, ...]."""
    if axis.size == 1:
        return x
    stacked = x.unflatten(1, (axis.size, -1)).transpose(0, 1).contiguous()
    local = torch.empty_like(stacked[0])
    dist.reduce_scatter_tensor(local, stacked.flatten(0, 1), group=axis.group)
    return local


def all_to_all(x: Tensor, axis: Axis) -> Tensor:
    """Send piece r of [T, ...] to rank r, and return the received pieces, [T, ...]. It is its own inverse."""
    sent = x.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=axis.group)
    return received


@dataclass(frozen=True)
class Pieces:
    """A way to split a tensor into one piece per rank.

    Attributes:
        split: Function from a tensor and the number of ranks T to pieces [T, ...].
        join: Inverse of `split`. Returns a copy.
    """

    split: Callable[[Tensor, int], Tensor]
    join: Callable[[Tensor], Tensor]
