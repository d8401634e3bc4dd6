"""Collectives of tensor parallelism as conjugate autograd pairs: what one direction gathers, the other one sums and scatters.

B batch, N tokens, T tensor ranks. Every function is the identity at T = 1, and gives only shapes when there is no process
group (planning on fake tensors), when it notes what would have been sent.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from megatape.parallel.mesh import Axis
from megatape.parallel.traffic import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, plan


def gather_tokens(x: Tensor, axis: Axis) -> Tensor:
    """[B, N/T, ...] -> [B, N, ...], every rank's tokens in order. Backward: reduce-scatter."""
    return x if axis.size == 1 else _Pair.apply(x, axis, all_gather, reduce_scatter)


def scatter_sum_tokens(x: Tensor, axis: Axis) -> Tensor:
    """[B, N, ...] partial sums -> [B, N/T, ...], the sum over ranks of this rank's tokens. Backward: all-gather."""
    return x if axis.size == 1 else _Pair.apply(x, axis, reduce_scatter, all_gather)


def tokens_to_channels(e: Tensor, axis: Axis) -> Tensor:
    """All tokens of a share of the channels for a share of the tokens of all channels: [B, N/T, L, R] -> [B, N, L/T, R]."""
    return e if axis.size == 1 else _Pair.apply(e, axis, _to_channels, _to_tokens)


def channels_to_tokens(e: Tensor, axis: Axis) -> Tensor:
    """The inverse of tokens_to_channels: [B, N, L/T, R] -> [B, N/T, L, R]."""
    return e if axis.size == 1 else _Pair.apply(e, axis, _to_tokens, _to_channels)


def replicated(parameter: Tensor, axis: Axis) -> Tensor:
    """A parameter that all ranks hold but that each uses on its own tokens. Backward: all-reduce of its gradient."""
    return parameter if axis.size == 1 else _Pair.apply(parameter, axis, lambda x, _: x.view_as(x), _all_reduce)


def own_tokens(x: Tensor, axis: Axis) -> Tensor:
    """This rank's share [B, N/T] of something [B, N] that all ranks hold and nothing is differentiated by."""
    return x if axis.size == 1 else x.chunk(axis.size, dim=1)[axis.rank]


def own_rows(ids: Tensor, num_rows: int, axis: Axis) -> tuple[Tensor, Tensor]:
    """Where ids of a divided vocabulary lie among the `num_rows` rows of this rank, and whether they do; others point to row 0."""
    rows = ids - axis.rank * num_rows
    mine = (rows >= 0) & (rows < num_rows)
    return rows.where(mine, 0), mine


def gathered_again(part: Tensor, whole: Tensor, weights: Sequence[Tensor], axis: Axis) -> AbstractContextManager[Any]:
    """Inside this context autograd does not keep `whole` = gather_tokens(part) but gathers it again in the backward pass.

    The part is kept anyway, and all ranks run the same backward pass in the same order. Layers that share one input share one
    gathering. weights: parameters used inside; they are kept by reference, since ZeRO-3 frees and refills their storage."""
    if axis.size == 1 or axis.keeps_gathered:
        return nullcontext()
    return _GatheredAgain(part.detach(), whole, weights, axis).hooks()


class _GatheredAgain:
    def __init__(self, part: Tensor, whole: Tensor, weights: Sequence[Tensor], axis: Axis) -> None:
        self.part, self.axis = part, axis
        self.identity = _identity(whole)
        self.weights = weights
        self.uses = 0
        self.whole: Tensor | None = None

    def hooks(self) -> AbstractContextManager[Any]:
        return saved_tensors_hooks(self._pack, lambda unpack: unpack())

    def _pack(self, tensor: Tensor) -> Callable[[], Tensor]:
        # Layers save views of what they were given, such as a weight's transpose: the same elements in other strides.
        identity, shape, strides = _identity(tensor), tensor.shape, tensor.stride()
        if identity == self.identity:
            self.uses += 1
            return lambda: self._gather().as_strided(shape, strides)
        weight = next((weight for weight in self.weights if identity == _identity(weight)), None)
        if weight is None:
            kept = tensor.detach()  # an output kept as it is would hold its own node, which keeps it
            return lambda: kept
        return lambda: weight.detach().as_strided(shape, strides)

    def _gather(self) -> Tensor:
        whole = all_gather(self.part, self.axis) if self.whole is None else self.whole
        self.uses -= 1
        self.whole = whole if self.uses else None
        return whole


def _identity(tensor: Tensor) -> tuple[int, int, int]:
    """The same for all views of the same elements; no data pointer, which shapes without memory do not have."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tensor.numel()


class _Pair(torch.autograd.Function):
    """One collective forward and its conjugate backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, there: Callable[..., Tensor], back: Callable[..., Tensor]) -> Tensor:
        ctx.axis, ctx.back = axis, back
        if there is all_gather:
            ctx.save_for_backward(x)  # gathered_again needs it; kept here, it is counted with what autograd keeps
        return there(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(grad, ctx.axis), None, None, None


# The collectives work on the leading axis: pieces are stacked there and moved to their place by a transpose.


def every_rank(x: Tensor, axis: Axis) -> Tensor:
    """[...] of each rank -> [T, ...] on all ranks. Without autograd, like all that follows."""
    if axis.size == 1:
        return x[None]
    stacked = x.new_empty(axis.size, *x.shape)
    if axis.group is None:
        plan(ALL_GATHER, stacked, axis.size)
    else:
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
    if axis.group is None:
        plan(REDUCE_SCATTER, stacked, axis.size)
    else:
        dist.reduce_scatter_tensor(own, stacked.flatten(0, 1), group=axis.group)
    return own


def _all_reduce(x: Tensor, axis: Axis) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    if axis.group is None:
        plan(ALL_REDUCE, total, axis.size)
    else:
        dist.all_reduce(total, group=axis.group)
    return total


def _to_channels(e: Tensor, axis: Axis) -> Tensor:
    sent = e.unflatten(2, (axis.size, -1)).permute(2, 0, 1, 3, 4).contiguous()  # [T, B, N/T, L/T, R]
    received = _all_to_all(sent, axis)
    return received.transpose(0, 1).flatten(1, 2).contiguous()


def _to_tokens(e: Tensor, axis: Axis) -> Tensor:
    sent = e.unflatten(1, (axis.size, -1)).transpose(0, 1).contiguous()  # [T, B, N/T, L/T, R]
    received = _all_to_all(sent, axis)
    return received.permute(1, 2, 0, 3, 4).flatten(2, 3).contiguous()


def _all_to_all(sent: Tensor, axis: Axis) -> Tensor:
    received = torch.empty_like(sent)
    if axis.group is None:
        plan(ALL_TO_ALL, sent, axis.size)
    else:
        dist.all_to_all_single(received, sent, group=axis.group)
    return received
