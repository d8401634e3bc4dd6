"""LoRA (Hu et al., arXiv 2106.09685, section 4.1): low-rank adapters of frozen tensor-parallel layers.

    y = x W^T + alpha / rank * dropout(x) A^T B^T        A [rank, in_features], B [out_features, rank]

Tensor-parallel ranks exchange tensors that are only as wide as the adapter's rank, and each saves only its own part of the
layer's input. Shapes as in model/transformer.py.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from megatape.distributed.collectives import gather_tokens, scatter_sum_tokens
from megatape.distributed.layout import local_tokens
from megatape.distributed.mesh import Axis
from megatape.nn.dropout import dropout
from megatape.nn.forward_context import forward_context
from megatape.nn.linear import Projection, RowLinear, SharedInputLinear
from megatape.nn.linear_function import LinearFunction
from megatape.nn.parameters import Uniform, parameter
from megatape.nn.remat.gathered_input import GatheredInput
from megatape.nn.remat.remat import Remat


@dataclass(frozen=True)
class AdapterOptions:
    """Options of one layer's adapter.

    Attributes:
        rank: Inner size.
        alpha: Numerator of the scale alpha / rank.
        dropout: Probability of dropping an input.
        layer: Random number of the layer, for drawing its dropout.
    """

    rank: int
    alpha: float
    dropout: float
    layer: int


class Adapter(nn.Module):
    """Base class of a layer's adapter. Subclasses shard one of the two matrices.

    Attributes:
        a: A, [rank, in_features].
        b: B, [out_features, rank], initially zero.
        a_dim: Dimension in which `a` is sharded, or None.
        b_dim: Dimension in which b is sharded, or None.
    """

    a_dim: ClassVar[int | None]
    b_dim: ClassVar[int | None]

    def __init__(self, in_features: int, out_features: int, axis: Axis, options: AdapterOptions) -> None:
        super().__init__()
        rank = options.rank
        self.axis = axis
        self.scale = options.alpha / rank
        self.probability = options.dropout
        self.layer = options.layer
        # peft's initialization: kaiming_uniform with a = sqrt(5).
        self.a = parameter((rank, in_features), axis, self.a_dim, init=Uniform(in_features**-0.5))
        self.b = parameter((out_features, rank), axis, self.b_dim, init=0.0)


class ColumnAdapter(Adapter):
    """Adapter of a column-parallel layer. `a` is whole and multiplies the rank's own tokens; b is [out_features / T, rank]."""

    a_dim = None
    b_dim = 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the adapter's addition to the output, [B, N/T, in_features] -> [B, N, out_features / T]."""
        seeds, token_indices = forward_context().samples
        x = dropout(x, self.probability, seeds, self.layer, token_indices=local_tokens(token_indices, self.axis))
        inner = gather_tokens(self.scale * F.linear(x, self.a), self.axis)
        return F.linear(inner, self.b)


class RowAdapter(Adapter):
    """Adapter of a row-parallel layer. `a` is [rank, in_features / T]; b is whole and multiplies the rank's own tokens."""

    a_dim = 1
    b_dim = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the adapter's addition to the output, [B, N, in_features / T] -> [B, N/T, out_features]."""
        seeds, token_indices = forward_context().samples
        first_channel = self.axis.rank * x.shape[2]
        x = dropout(x, self.probability, seeds, self.layer, token_indices=token_indices, first_channel=first_channel)
        inner = scatter_sum_tokens(self.scale * F.linear(x, self.a), self.axis)
        return F.linear(inner, self.b)


class LoraColumnLinear(SharedInputLinear):
    """Column-parallel layer with an adapter."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        axis: Axis,
        bias: bool,
        linear_function: LinearFunction,
        adapter: AdapterOptions,
    ) -> None:
        super().__init__(in_features, out_features, axis, bias, linear_function=linear_function)
        self.adapter = ColumnAdapter(in_features, out_features, axis, adapter)

    def forward(self, x: Tensor, *, gathered: GatheredInput | None = None, is_last: bool = True) -> Projection:
        """Return the output and the next layer's input. The adapter only reads this rank's tokens."""
        projection = super().forward(x, gathered=gathered, is_last=is_last)
        own_tokens = gathered.local if gathered is not None and gathered.is_gathered else x
        output = projection.output + self.adapter(own_tokens)
        return projection._replace(output=output)


class LoraRowLinear(RowLinear):
    """Row-parallel layer with an adapter."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        axis: Axis,
        bias: bool,
        linear_function: LinearFunction,
        adapter: AdapterOptions,
    ) -> None:
        super().__init__(in_features, out_features, axis, bias, linear_function)
        self.adapter = RowAdapter(in_features, out_features, axis, adapter)

    def summed(self, x: Tensor, remat: Remat | None) -> Tensor:
        return super().summed(x, remat) + self.adapter(x)
