"""The input of column-parallel linear layers, gathered while the first of them multiplies.

B batch, N tokens, T tensor-parallel ranks.
"""

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from megatape.distributed.asynchronous import AsyncAllGather
from megatape.distributed.collectives import paired, reduce_scatter
from megatape.distributed.mesh import Axis
from megatape.nn.remat import Rebuild, RecomputedInput, Remat, attach, identity, recomputed, remat_of


def begin_gather(x: Tensor, axis: Axis) -> Tensor:
    """The tokens of all ranks, [B, N/T, D] -> [B, N, D], in flight: for linear layers only, which wait for them.

    Each rank keeps only its part, and the backward pass gathers the rest again, once for all layers. Backward:
    reduce-scatter.
    """
    if axis.size == 1:
        return x
    gather = AsyncAllGather(x.detach(), axis, in_halves=True)
    whole = paired(x, axis, lambda x, axis: gather.whole.view_as(gather.whole), reduce_scatter)
    whole.untyped_storage().local = weakref.ref(x)  # type: ignore[attr-defined]
    if recomputed():
        gather.wait()
        return whole
    part = remat_of(x) or Remat(identity, (x.detach(),))
    return attach(whole, Remat(part.function, part.args, _GatheredInput(part.function, axis, gather)))


def local_part(x: Tensor) -> Tensor:
    """This rank's tokens [B, N/T, D] of x, which begin_gather has returned to a caller that still holds them."""
    local = getattr(x.untyped_storage(), "local", None)
    return x if local is None else local()


class _GatheredInput(RecomputedInput):
    """arriving: in the forward pass, the samples that a product can take, for the first layer as they arrive."""

    def __init__(self, function: Rebuild, axis: Axis, gather: AsyncAllGather) -> None:
        super().__init__(function)
        self.axis = axis
        self.arriving: Iterable[slice] = gather.rows()

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # and it holds the whole no longer
        arriving = self.arriving
        self.arriving = (slice(None),)
        out = x.new_empty(*x.shape[:-1], len(weight))
        for rows in arriving:
            torch.mm(x[rows].flatten(0, 1), weight.T, out=out[rows].flatten(0, 1))
        return out if bias is None else out.add_(bias)

    def rebuild(self, *args: Tensor) -> Callable[[], Tensor]:
        return AsyncAllGather(self.function(*args), self.axis).wait
