"""Low-rank adapters of the parallel layers (LoRA, arXiv 2106.09685): y = x W^T + alpha / rank * dropout(x) A^T B^T.

B batch, N tokens, T tensor-parallel ranks. The ranks exchange tensors as wide as the adapter's rank, and each saves only its
own part of the layer's input.
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
    """LoRA adapter of one layer.

    a: [rank, in_features]; b: [out_features, rank], initially zero. Subclasses divide one of them among the ranks of `axis`.

    Args:
        in_features: Number of inputs of the whole layer.
        out_features: Number of outputs of the whole layer.
        axis: Tensor-parallel ranks.
        rank: Rank of the adapter.
        alpha: Numerator of the adapter's scale alpha / rank.
        dropout: Probability of dropping an input.
        layer: Random number of the layer, from which its dropout is drawn.
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
        # peft's initial values: kaiming_uniform with a = sqrt(5).
        self.a = parameter((rank, in_features), axis, self.a_dim, init=Uniform(in_features**-0.5))
        self.b = parameter((out_features, rank), axis, self.b_dim, init=0.0)


class ColumnAdapter(Adapter):
    """Adapter of a column-parallel layer.

    a: [rank, in_features], applied to the rank's own tokens; b: [out_features / T, rank].
    """

    a_dim = None
    b_dim = 0

    def forward(self, x: Tensor) -> Tensor:
        """[B, N/T, in_features] -> [B, N, out_features / T]."""
        seeds, token_indices = samples.get()
        x = dropout(x, self.probability, seeds, self.layer, token_indices=local_tokens(token_indices, self.axis))
        inner = gather_tokens(self.scale * F.linear(x, self.a), self.axis)
        return F.linear(inner, self.b)


class RowAdapter(Adapter):
    """Adapter of a row-parallel layer.

    a: [rank, in_features / T]; b: [out_features, rank], applied to the rank's own tokens.
    """

    a_dim = 1
    b_dim = None

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, in_features / T] -> [B, N/T, out_features]."""
        seeds, token_indices = samples.get()
        first_channel = self.axis.rank * x.shape[2]
        x = dropout(x, self.probability, seeds, self.layer, token_indices=token_indices, first_channel=first_channel)
        inner = scatter_sum_tokens(self.scale * F.linear(x, self.a), self.axis)
        return F.linear(inner, self.b)


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
