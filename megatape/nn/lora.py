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
from megatape.nn.gathered_input import GatheredInput
from megatape.nn.linear import ColumnLinear, RowLinear
from megatape.nn.parameters import Uniform, parameter
from megatape.nn.remat import Remat


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
    """A column-parallel layer with an adapter."""

    def __init__(self, *args: Any, adapter: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adapter = ColumnAdapter(self.in_features, self.out_features, self.axis, **adapter)

    def forward(self, x: Tensor, pass_input: bool = False, *, gathered: GatheredInput | None = None) -> Any:
        """See ColumnLinear. The adapter multiplies this rank's tokens alone."""
        y, next_x = super().forward(x, pass_input=True, gathered=gathered)
        own_tokens = x
        if gathered is not None and gathered.is_gathered:
            own_tokens = gathered.local
        y = y + self.adapter(own_tokens)
        return (y, next_x) if pass_input else y


class LoraRowLinear(RowLinear):
    """A row-parallel layer with an adapter."""

    def __init__(self, *args: Any, adapter: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adapter = RowAdapter(self.in_features, self.out_features, self.axis, **adapter)

    def summed(self, x: Tensor, remat: Remat | None) -> Tensor:
        return super().summed(x, remat) + self.adapter(x)
