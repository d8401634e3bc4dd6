"""Collectives that overlap with computation: their constructors begin them, and `wait` returns their results.

A device runs the collectives of a group in the order in which they began. So begin the one needed first before the others.
Shapes as in model/transformer.py.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.collectives import Pieces, all_to_all, paired
from megatape.distributed.mesh import Axis


class AsyncAllToAll:
    """All-to-all in flight. x is split into one piece per rank, and received pieces are joined along another dimension.

    The backward pass begins the inverse exchange at `wait`, and waits for it where this one began, so it overlaps as well.

    Args:
        x: Tensor to exchange, or None. With a single rank, nothing is exchanged.
        axis: Ranks that exchange pieces.
        split_by: Rule for splitting x into pieces.
        join_by: Rule for joining the received pieces.
    """

    def __init__(self, x: Tensor | None, axis: Axis, split_by: Pieces, join_by: Pieces) -> None:
        self._axis = axis
        self._join_by = join_by
        self._exchange = _Exchange()
        self._x = x
        if x is None or axis.size == 1:
            return
        if torch.compiler.is_compiling():
            # In a graph, the exchange is one operator, and the compiler chooses when to wait for it.
            self._x = paired(split_by.split(x, axis.size), axis, all_to_all, all_to_all)
            return
        begin = partial(self._exchange.begin, split_by)
        finish = partial(self._exchange.finish, split_by)
        self._x = paired(x, axis, begin, finish)

    def wait(self) -> Tensor | None:
        """Wait for the pieces of the other ranks, and join them."""
        if self._x is None or self._axis.size == 1:
            return self._x
        if torch.compiler.is_compiling():
            return self._join_by.join(self._x)
        begin = partial(self._exchange.begin, self._join_by)
        finish = partial(self._exchange.finish, self._join_by)
        return paired(self._x, self._axis, finish, begin)


class _Exchange:
    """The exchange in flight, forward or backward. It refers to no tensor with a graph, which would be a cycle."""

    def __init__(self) -> None:
        # Pieces being sent. The collective reads this memory until it ends.
        self._sent: Tensor | None = None
        self._work: dist.Work | None = None

    def begin(self, pieces: Pieces, x: Tensor, axis: Axis) -> Tensor:
        """Begin to exchange x. Return the received pieces, incomplete until `finish`."""
        self._sent = pieces.split(x, axis.size).contiguous()
        received = torch.empty_like(self._sent)
        self._work = dist.all_to_all_single(received, self._sent, group=axis.group, async_op=True)
        return received

    def finish(self, pieces: Pieces, received: Tensor, axis: Axis) -> Tensor:
        """Wait for the received pieces, and join them."""
        assert self._work is not None
        self._work.wait()
        self._sent = None
        self._work = None
        return pieces.join(received)


class AsyncShift:
    """Shift around a ring in flight: each rank sends its tensor to the next rank. No gradient.

    An all-to-all with empty pieces for all other ranks: NCCL sends and receives once, and cannot deadlock.

    Args:
        x: Tensor to send, one-dimensional. All ranks send the same number of elements.
        axis: Ranks in the ring, more than one.
        overlap: Whether the caller computes before waiting.
    """

    def __init__(self, x: Tensor, axis: Axis, overlap: bool = True) -> None:
        # The collective reads this memory until it ends.
        self._sent = x
        self._received = torch.empty_like(x)
        incoming = [0] * axis.size
        outgoing = [0] * axis.size
        previous_rank = axis.rank - 1
        next_rank = (axis.rank + 1) % axis.size
        incoming[previous_rank] = len(x)
        outgoing[next_rank] = len(x)
        self._work = dist.all_to_all_single(self._received, x, incoming, outgoing, group=axis.group, async_op=overlap)

    def wait(self) -> Tensor:
        """Wait for the tensor of the previous rank."""
        if self._work is not None:
            self._work.wait()
        return self._received


class _GatheredHalf(NamedTuple):
    """All-gather of some samples in flight.

    Attributes:
        work: The collective, or None if it has ended.
        stacked: Output of the collective, [T, samples, N/T, ...].
        whole: View of the gathered tensor where these samples belong, in the same shape.
    """

    work: dist.Work | None
    stacked: Tensor
    whole: Tensor


class AsyncAllGather:
    """All-gather of tokens in flight, [B, N/T, ...] -> [B, N, ...]. No gradient.

    Args:
        part: Tokens of this rank, [B, N/T, ...].
        axis: Ranks to gather from, more than one.
        in_halves: Whether to gather the first half of the samples at once, and the second while the caller multiplies the
            first. Otherwise everything overlaps with the computation before `wait`.

    Attributes:
        whole: Gathered tensor, [B, N, ...], complete after `wait` or after the last of `rows`.
    """

    def __init__(self, part: Tensor, axis: Axis, in_halves: bool = False) -> None:
        self._axis = axis
        self.whole = part.new_empty(part.shape[0], axis.size * part.shape[1], *part.shape[2:])
        count = 2 if in_halves else 1
        # Write through `data`. Otherwise autograd would count writes to `whole` as changes of a tensor that it has saved.
        halves = zip(part.chunk(count), self.whole.data.chunk(count), strict=True)
        self._arriving: list[_GatheredHalf] = []
        for index, (part_half, whole_half) in enumerate(halves):
            overlap = not in_halves or index > 0
            self._arriving.append(self._begin(part_half, whole_half, overlap))

    def _begin(self, part: Tensor, whole: Tensor, overlap: bool) -> _GatheredHalf:
        """Begin to gather some samples into a view of `whole`."""
        if len(part) == 1:
            # A single sample's tokens are in the order of ranks, in which pieces arrive.
            stacked = whole.view(self._axis.size, *part.shape)
        else:
            stacked = part.new_empty(self._axis.size, *part.shape)
        work = dist.all_gather_into_tensor(stacked.flatten(0, 1), part.contiguous(), group=self._axis.group, async_op=overlap)
        return _GatheredHalf(work, stacked, whole.unflatten(1, (self._axis.size, -1)).transpose(0, 1))

    def rows(self) -> Iterator[slice]:
        """Yield the samples of each half as they arrive."""
        first = 0
        while self._arriving:
            half = self._arriving.pop(0)
            if half.work is not None:
                half.work.wait()
            if half.stacked.shape[1] > 1:
                half.whole.copy_(half.stacked)
            end = first + half.whole.shape[1]
            yield slice(first, end)
            first = end

    def wait(self) -> Tensor:
        """Return the gathered tensor once it is complete."""
        for _ in self.rows():
            pass
        return self.whole
