"""Collectives that overlap with computation: begun at one place, finished at another.

A device runs the collectives of one group in the order in which they begin, so the one that is needed first begins first.
B batch, N tokens, T tensor-parallel ranks.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.collectives import Pieces, paired
from megatape.distributed.mesh import Axis


class AsyncAllToAll:
    """An all-to-all in flight: x is split into one piece for each rank, and the pieces of all ranks are joined in another way.

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
        begin = partial(self.pending.begin, self.wanted)
        finish = partial(self.pending.finish, self.wanted)
        return None if self.x is None else paired(self.x, self.axis, finish, begin)


class _Pending:
    """What is in flight, in one direction or in the other. It does not know the graph, which holds it."""

    def begin(self, given: Pieces, x: Tensor, axis: Axis) -> Tensor:
        """Returns what is complete in `finish`."""
        self.sent: Tensor | None = given.split(x, axis.size).contiguous()  # kept, as its memory is read until it has left
        received = torch.empty_like(self.sent)
        self.work: Any = dist.all_to_all_single(received, self.sent, group=axis.group, async_op=True)
        return received

    def finish(self, wanted: Pieces, received: Tensor, axis: Axis) -> Tensor:
        """The pieces of all ranks, joined."""
        self.work.wait()
        self.sent = self.work = None
        return wanted.join(received)


class AsyncShift:
    """The tensor of the previous rank of a ring in flight, while that of this rank travels to the next one. No gradient.

    It is an all-to-all with empty pieces for all other ranks. NCCL makes it of one send and one receive, which no order of the
    ranks can block.

    Args:
        x: Of one dimension; all ranks have the same number of elements.
        axis: The ring, of more than one rank.
        overlap: Whether the caller computes before it waits.
    """

    def __init__(self, x: Tensor, axis: Axis, overlap: bool = True) -> None:
        self.sent = x
        self.received = torch.empty_like(x)
        incoming = [0] * axis.size
        outgoing = [0] * axis.size
        incoming[axis.rank - 1] = outgoing[(axis.rank + 1) % axis.size] = len(x)
        self.work = dist.all_to_all_single(self.received, x, incoming, outgoing, group=axis.group, async_op=overlap)

    def wait(self) -> Tensor:
        """The tensor of the previous rank, complete."""
        if self.work is not None:
            self.work.wait()
        return self.received


class AsyncAllGather:
    """An all-gather of tokens in flight, [B, N/T, ...] -> [B, N, ...]. T > 1; no gradient.

    Attributes:
        whole: Complete once `rows` has ended. With `in_halves` there is one collective for each half of the samples, of which
            the first ends at once, so that products of the first half overlap with the second; otherwise the whole overlaps
            with what comes before `wait`.
    """

    def __init__(self, part: Tensor, axis: Axis, in_halves: bool = False) -> None:
        self.axis = axis
        self.whole = part.new_empty(part.shape[0], axis.size * part.shape[1], *part.shape[2:])
        count = 2 if in_halves else 1
        # By `data`, since autograd counts writes to `whole`, and must not count those that come after it has seen it.
        halves = list(zip(part.chunk(count), self.whole.data.chunk(count), strict=True))
        self.arriving = [self._begin(*half, overlap=not in_halves or index > 0) for index, half in enumerate(halves)]

    def _begin(self, part: Tensor, whole: Tensor, overlap: bool) -> tuple[Any, Tensor, Tensor]:
        in_order = len(part) == 1  # pieces arrive rank by rank; of a single sample that is the order of its tokens
        stacked = whole.view(self.axis.size, *part.shape) if in_order else part.new_empty(self.axis.size, *part.shape)
        work = dist.all_gather_into_tensor(stacked.flatten(0, 1), part.contiguous(), group=self.axis.group, async_op=overlap)
        return work, stacked, whole.unflatten(1, (self.axis.size, -1)).transpose(0, 1)

    def rows(self) -> Iterator[slice]:
        """The samples of each half as they arrive."""
        first = 0
        while self.arriving:
            work, stacked, whole = self.arriving.pop(0)
            if work is not None:
                work.wait()
            if stacked.shape[1] > 1:
                whole.copy_(stacked)
            yield slice(first, first := first + whole.shape[1])

    def wait(self) -> Tensor:
        """The whole, complete."""
        for _ in self.rows():
            pass
        return self.whole
