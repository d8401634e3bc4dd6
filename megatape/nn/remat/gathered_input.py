"""Input of column-parallel linear layers, gathered from the tensor-parallel ranks while the first layer multiplies.

Shapes as in model/transformer.py.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from megatape.distributed.asynchronous import AsyncAllGather
from megatape.distributed.collectives import gather_tokens, paired, reduce_scatter
from megatape.distributed.mesh import Axis
from megatape.nn.forward_context import forward_context
from megatape.nn.remat.recompute import recompute
from megatape.nn.remat.remat import Rebuild, Remat, recipe_of
from megatape.nn.remat.shared_input import SharedInput


@dataclass(frozen=True)
class GatheredInput:
    """Input that several column-parallel layers multiply.

    Attributes:
        whole: Tokens of all ranks, [B, N, D]. Only complete for layers that get `remat`.
        local: Tokens of this rank, [B, N/T, D].
        remat: Recipe for rebuilding `whole` in the backward pass, or None if autograd saves it.
    """

    whole: Tensor
    local: Tensor
    remat: Remat | None

    @property
    def is_gathered(self) -> bool:
        """Whether `whole` has tokens of other ranks."""
        return self.whole is not self.local


def begin_gather(x: Tensor, axis: Axis, remat: Remat | None = None) -> GatheredInput:
    """Begin to gather the tokens of all ranks, [B, N/T, D] -> [B, N, D]. Only linear layers wait for them.

    Each rank saves its own tokens. The backward pass gathers the rest again, once for all layers.

    Args:
        x: Tokens of this rank, [B, N/T, D].
        axis: Tensor-parallel ranks. With a single rank there is nothing to gather.
        remat: Recipe for rebuilding x in the backward pass, or None if x is saved.
    """
    if axis.size == 1:
        return GatheredInput(x, x, remat)
    if torch.compiler.is_compiling():
        # Autograd saves x, and the graph of the backward pass gathers it again.
        return GatheredInput(recompute(partial(gather_tokens, axis=axis), x), x, None)
    gather = AsyncAllGather(x.detach(), axis, in_halves=True)

    def tensor_in_flight(_: Tensor, __: Axis) -> Tensor:
        """Return the gathered tensor, which `gather` already fills."""
        # Autograd attaches the graph to the tensor returned here. A view keeps it off `gather.whole`, so that what still refers
        # to `gather` does not hold the graph of x.
        return gather.whole.view_as(gather.whole)

    whole = paired(x, axis, tensor_in_flight, reduce_scatter)
    if forward_context().is_recomputed:
        # Saving the gathered input is cheaper than gathering it a third time.
        gather.wait()
        return GatheredInput(whole, x, None)
    recipe = recipe_of(x, remat)
    shared_input = _SharedGatheredInput(recipe.function, axis, gather)
    return GatheredInput(whole, x, Remat(whole, recipe, shared_input))


class _SharedGatheredInput(SharedInput):
    """Gathered input of several layers. Each rank rebuilds its own tokens, and the backward pass gathers them again.

    Attributes:
        arriving: Samples that the first layer can multiply, as they arrive. Later layers multiply all samples at once.
    """

    def __init__(self, function: Rebuild, axis: Axis, gather: AsyncAllGather) -> None:
        super().__init__(function)
        self.axis = axis
        self.arriving: Iterable[slice] = gather.rows()

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        arriving = self.arriving
        # This also releases the gathered tensor, which the iterator refers to.
        self.arriving = (slice(None),)
        out = x.new_empty(*x.shape[:-1], len(weight))
        for rows in arriving:
            torch.mm(x[rows].flatten(0, 1), weight.T, out=out[rows].flatten(0, 1))
        if bias is None:
            return out
        return out.add_(bias)

    def rebuild(self, *args: Tensor) -> Callable[[], Tensor]:
        local = self.function(*args)
        return AsyncAllGather(local, self.axis).wait
