"""Collectives that overlap with computation: they begin at one place and finish at another.

A device runs the collectives of one group in the order in which they begin, so the one that is needed first begins first.
Shapes as in model/transformer.py.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.collectives import Pieces, paired
from megatape.distributed.mesh import Axis


class AsyncAllToAll:
    """An all-to-all in flight. x is split into one piece for each rank; the pieces of all ranks are joined in another way.

    The backward pass, which meets `wait` first, begins the inverse exchange there and waits for it where this one began: it
    overlaps with the backward pass of what was computed between the two. At T = 1, and for None, nothing is exchanged.
    """

    def __init__(self, x: Tensor | None, axis: Axis, given: Pieces, wanted: Pieces) -> None:
        self.axis = axis
        self.wanted = wanted
        self.pending = _Pending()
        begin = partial(self.pending.begin, given)
        finish = partial(self.pending.finish, given)
        self.x = None if x is None else paired(x, axis, begin, finish)

    def wait(self) -> Tensor | None:
        """Wait for the pieces of the other ranks, and join them."""
        if self.x is None:
            return None
        begin = partial(self.pending.begin, self.wanted)
        finish = partial(self.pending.finish, self.wanted)
        return paired(self.x, self.axis, finish, begin)


class _Pending:
    """State of the exchange in flight, forward or backward.

    It holds no reference to the autograd graph, which would be a cycle.
    """

    def begin(self, given: Pieces, x: Tensor, axis: Axis) -> Tensor:
        """Begin the exchange. Returns the received pieces, which are complete in `finish`."""
        # Kept until it has left, because the collective reads its memory.
        self.sent: Tensor | None = given.split(x, axis.size).contiguous()
        received = torch.empty_like(self.sent)
        self.work: dist.Work | None = dist.all_to_all_single(received, self.sent, group=axis.group, async_op=True)
        return received

    def finish(self, wanted: Pieces, received: Tensor, axis: Axis) -> Tensor:
        """Wait for the pieces of all ranks, and join them."""
        assert self.work is not None
        self.work.wait()
        self.sent = None
        self.work = None
        return wanted.join(received)


class AsyncShift:
    """A shift around a ring in flight: each rank sends its tensor to the next rank. No gradient.

    It is an all-to-all with empty pieces for all other ranks. NCCL makes it of one send and one receive, which no order of the
    ranks can block.

    Args:
        x: Tensor to send, of one dimension. All ranks have the same number of elements.
        axis: Ranks of the ring, more than one.
        overlap: Whether the caller computes before it waits.
    """

    def __init__(self, x: Tensor, axis: Axis, overlap: bool = True) -> None:
        self.sent = x
        self.received = torch.empty_like(x)
        incoming = [0] * axis.size
        outgoing = [0] * axis.size
        previous_rank = axis.rank - 1
        next_rank = (axis.rank + 1) % axis.size
        incoming[previous_rank] = len(x)
        outgoing[next_rank] = len(x)
        self.work = dist.all_to_all_single(self.received, x, incoming, outgoing, group=axis.group, async_op=overlap)

    def wait(self) -> Tensor:
        """Wait for the tensor of the previous rank."""
        if self.work is not None:
            self.work.wait()
        return self.received


class _GatheredHalf(NamedTuple):
    """Some samples of an all-gather in flight.

    Attributes:
        work: The collective; None if it has ended.
        stacked: Its output, [T, samples, N/T, ...].
        whole: Place of the samples in the gathered tensor, as a view of the same shape.
    """

    work: dist.Work | None
    stacked: Tensor
    whole: Tensor


class AsyncAllGather:
    """An all-gather of tokens in flight, [B, N/T, ...] -> [B, N, ...]. T > 1; no gradient.

    Attributes:
        whole: Gathered tensor, complete once `rows` has ended. With `in_halves` there is one collective for each half of the
            samples, of which the first ends at once, so that products of the first half overlap with the second. Otherwise the
            whole overlaps with the computation before `wait`.
    """

    def __init__(self, part: Tensor, axis: Axis, in_halves: bool = False) -> None:
        self.axis = axis
        self.whole = part.new_empty(part.shape[0], axis.size * part.shape[1], *part.shape[2:])
        count = 2 if in_halves else 1
        # Through `data`, because autograd counts writes to `whole`, and would notice those after it has seen the tensor.
        halves = zip(part.chunk(count), self.whole.data.chunk(count), strict=True)
        self.arriving: list[_GatheredHalf] = []
        for index, (part_half, whole_half) in enumerate(halves):
            overlap = not in_halves or index > 0
            self.arriving.append(self._begin(part_half, whole_half, overlap))

    def _begin(self, part: Tensor, whole: Tensor, overlap: bool) -> _GatheredHalf:
        """Begin to gather some samples into a view of `whole`."""
        if len(part) == 1:
            # Pieces arrive rank by rank, which is the order of the tokens of a single sample.
            stacked = whole.view(self.axis.size, *part.shape)
        else:
            stacked = part.new_empty(self.axis.size, *part.shape)
        work = dist.all_gather_into_tensor(stacked.flatten(0, 1), part.contiguous(), group=self.axis.group, async_op=overlap)
        return _GatheredHalf(work, stacked, whole.unflatten(1, (self.axis.size, -1)).transpose(0, 1))

    def rows(self) -> Iterator[slice]:
        """Yield the samples of each half as they arrive."""
        first = 0
        while self.arriving:
            half = self.arriving.pop(0)
            if half.work is not None:
                half.work.wait()
            if half.stacked.shape[1] > 1:
                half.whole.copy_(half.stacked)
            end = first + half.whole.shape[1]
            yield slice(first, end)
            first = end

    def wait(self) -> Tensor:
        """Wait for the whole tensor."""
        for _ in self.rows():
            pass
        return self.whole
