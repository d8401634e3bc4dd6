"""Low-rank adapters of the parallel layers (LoRA, arXiv 2106.09685): y = x W^T + alpha / rank * dropout(x) A^T B^T.

B batch, N tokens, T tensor-parallel ranks. What the ranks exchange is as wide as the adapter's rank, and each keeps only
its own part of the layer's input.
"""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from megatape.distributed.collectives import gather_tokens, scatter_sum_tokens
from megatape.distributed.layout import local_tokens
from megatape.distributed.mesh import Axis
from megatape.nn.dropout import dropout, samples
from megatape.nn.linear import ColumnLinear, RowLinear
from megatape.nn.overlap import local_part
from megatape.nn.parameters import Uniform, parameter


class Adapter(nn.Module):
    """What LoRA adds to the output of one layer.

    a: [rank, in_features]; b: [out_features, rank], zero at first. Subclasses divide one of them among the ranks of `axis`.
    in_features, out_features: of the whole layer. dropout: probability. layer: a random number of the layer.
    """

    a_dim: ClassVar[int | None]
    b_dim: ClassVar[int | None]

    def __init__(
        self, in_features: int, out_features: int, axis: Axis, *, rank: int, alpha: float, dropout: float, layer: int
    ) -> None:
        super().__init__()
        self.axis = axis
        self.scale = alpha / rank
        self.probability = dropout
        self.layer = layer
        # peft's own start: kaiming_uniform with a = sqrt(5).
        self.a = parameter((rank, in_features), axis, self.a_dim, init=Uniform(in_features**-0.5))
        self.b = parameter((out_features, rank), axis, self.b_dim, init=0.0)


class ColumnAdapter(Adapter):
    """Of a layer whose outputs the ranks divide. a: [rank, in_features], for its own tokens; b: [out_features / T, rank]."""

    a_dim = None
    b_dim = 0

    def forward(self, x: Tensor) -> Tensor:
        """[B, N/T, in_features] -> [B, N, out_features / T]."""
        seeds, places = samples.get()
        x = dropout(x, self.probability, seeds, self.layer, places=local_tokens(places, self.axis))
        return F.linear(gather_tokens(self.scale * F.linear(x, self.a), self.axis), self.b)


class RowAdapter(Adapter):
    """Of a layer whose inputs the ranks divide. a: [rank, in_features / T]; b: [out_features, rank], for its own tokens."""

    a_dim = 1
    b_dim = None

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, in_features / T] -> [B, N/T, out_features]."""
        seeds, places = samples.get()
        first_channel = self.axis.rank * x.shape[2]
        x = dropout(x, self.probability, seeds, self.layer, places=places, first_channel=first_channel)
        return F.linear(scatter_sum_tokens(self.scale * F.linear(x, self.a), self.axis), self.b)


class LoraColumnLinear(ColumnLinear):
    """A column layer with an adapter, as which model/lora.py swaps it."""

    adapter: ColumnAdapter

    def forward(self, x: Tensor, pass_input: bool = False) -> Any:
        y, next_x = super().forward(x, pass_input=True)
        y = y + self.adapter(local_part(x))
        return (y, next_x) if pass_input else y


class LoraRowLinear(RowLinear):
    """A row layer with an adapter, as which model/lora.py swaps it."""

    adapter: RowAdapter

    def summed(self, x: Tensor) -> Tensor:
        return super().summed(x) + self.adapter(x)
