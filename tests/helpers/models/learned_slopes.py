"""Position encoding from outside the package, carried by exports."""

from typing import ClassVar

import torch
from torch import Tensor

from megatape.attention.attend import BiasKind
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias
from megatape.nn.parameters import parameter

START = 0.25


class SlopeBias(LayerBias):
    """-slope times distance with a learned slope for each head."""

    def __init__(self, num_heads: int, axis: Axis) -> None:
        super().__init__()
        self.slope = parameter((num_heads,), axis, 0, init=START, lr_scale=3.0)

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        return (-self.slope.float()[:, None] * torch.arange(k.shape[1], dtype=torch.float32, device=k.device),)


class LearnedSlopes(Encoding):
    """ALiBi with learned slopes."""

    score_bias: ClassVar[BiasKind] = "distance"

    def bias(self, axis: Axis) -> LayerBias:
        return SlopeBias(self.config.num_heads, axis)
