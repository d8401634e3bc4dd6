"""ALiBi (arXiv 2108.12409): each head's scores fall linearly with the distance."""

import math

import torch
from torch import Tensor

from .encoding import Encoding, LayerBias, Pairs


def slopes(heads: int) -> list[float]:
    """2^(-8 h / H) for a power of two; else those of the power below, then every second one of the power above."""
    power = 2 ** int(math.log2(heads))
    first = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    return first if power == heads else first + slopes(2 * power)[::2][: heads - power]


class AlibiBias(LayerBias):
    """-slope times distance. No parameters."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = slopes(num_heads)

    def forward(self, pairs: Pairs) -> Tensor:
        return (-torch.tensor(self.slopes, device=pairs.distance.device)[:, None, None] * pairs.distance)[None]


class Alibi(Encoding):
    """See above."""

    def bias(self) -> LayerBias:
        return AlibiBias(self.config.num_attention_heads)
