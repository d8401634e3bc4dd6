"""Collectives that run beside computation: begun at one place, finished at another.

A device runs the collectives of one group in the order in which they begin, so the one that is needed first begins first.
B batch, N tokens, T tensor-parallel ranks.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.parallel.collectives import Pieces, reduce_scatter
from megatape.parallel.mesh import Axis


class Exchange:
    """An all-to-all: x is split into one piece a rank, and the pieces of all ranks are joined in another way.

    The backward pass, which meets `finish` first, begins the inverse exchange there and finishes it at `begin`: beside the
    backward pass of what was computed between the two. At T = 1 nothing changes."""

    def __init__(self, x: Tensor, axis: Axis, given: Pieces, wanted: Pieces) -> None:
        self.x, self.flight = x, None if axis.size == 1 else _Flight(axis, given, wanted)

    def begin(self) -> "Exchange":
        """Send the pieces."""
        if self.flight is not None:
            self.x = _Begin.apply(self.x, self.flight)
        return self

    def finish(self) -> Tensor:
        """Wait for the pieces of the other ranks, and join them."""
        if self.flight is not None:
            joined: Tensor = _Finish.apply(self.x, self.flight)
            return joined
        return self.x


class _Flight:
    """An exchange under way, in one direction or in the other."""

    def __init__(self, axis: Axis, given: Pieces, wanted: Pieces) -> None:
        self.axis, self.given, self.wanted = axis, given, wanted
        self.sent: Tensor | None = None
        self.work: Any = None

    def send(self, pieces: Tensor) -> Tensor:
        """Returns what is complete after `wait`."""
        received = torch.empty_like(pieces)
        self.sent = pieces  # its memory must not be used again before it has left
        self.work = dist.all_to_all_single(received, pieces, group=self.axis.group, async_op=True)
        return received

    def wait(self) -> None:
        self.work.wait()
        self.sent = self.work = None


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, flight: _Flight) -> Tensor:
        ctx.flight = flight
        return flight.send(flight.given.split(x, flight.axis.size))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ctx.flight.wait()
        return ctx.flight.given.join(grad), None


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, received: Tensor, flight: _Flight) -> Tensor:
        ctx.flight = flight
        flight.wait()
        return flight.wanted.join(received)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.flight.send(ctx.flight.wanted.split(grad, ctx.flight.axis.size)), None


class Gathering:
    """An all-gather of tokens under way, [B, N/T, ...] -> [B, N, ...]. T > 1; no gradient.

    in_halves: one collective for each half of the samples, of which the first ends at once, so that products of the first half
    run beside the second; otherwise the whole runs beside what comes before `wait`. whole: complete once `rows` has ended."""

    def __init__(self, part: Tensor, axis: Axis, in_halves: bool = False) -> None:
        self.axis, self.whole = axis, part.new_empty(part.shape[0], axis.size * part.shape[1], *part.shape[2:])
        count = 2 if in_halves else 1
        # By `data`, since autograd counts writes to `whole`, and must not count those that come after it has seen it.
        halves = list(zip(part.chunk(count), self.whole.data.chunk(count), strict=True))
        self.arriving = [self._begin(*half, beside=not in_halves or index > 0) for index, half in enumerate(halves)]

    def _begin(self, part: Tensor, whole: Tensor, beside: bool) -> tuple[Any, Tensor, Tensor]:
        in_order = len(part) == 1  # pieces arrive rank by rank; of a single sample that is the order of its tokens
        stacked = whole.view(self.axis.size, *part.shape) if in_order else part.new_empty(self.axis.size, *part.shape)
        work = dist.all_gather_into_tensor(stacked.flatten(0, 1), part.contiguous(), group=self.axis.group, async_op=beside)
        return work, stacked, whole.unflatten(1, (self.axis.size, -1)).transpose(0, 1)

    def rows(self) -> Iterator[slice]:
        """The samples of each half as soon as they are there, or all of them if the gathering had ended before."""
        if not self.arriving:
            yield slice(None)
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


def begin_gather(x: Tensor, axis: Axis) -> tuple[Tensor, Gathering]:
    """The whole of this rank's tokens and the gathering that completes it. Backward: reduce-scatter."""
    gathering = Gathering(x.detach(), axis, in_halves=True)
    whole: Tensor = _Gathered.apply(x, gathering.whole, axis)
    return whole, gathering


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, whole: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return reduce_scatter(grad, ctx.axis), None, None
