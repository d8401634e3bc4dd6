"""ALiBi (Press et al., arXiv 2108.12409): each head's scores fall linearly with the distance."""

import math

import torch
from torch import Tensor

from megatape.model.encodings.encoding import Encoding, LayerBias
from megatape.parallel.mesh import Axis


def slopes(num_heads: int) -> list[float]:
    """2^(-8 h / H) for the heads h = 1 .. H if H is a power of two.

    Otherwise those of the next lower power, then every second one of the next higher power, as in
    the ALiBi authors' code."""
    power = 2 ** math.floor(math.log2(num_heads))
    first = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    return first if power == num_heads else first + slopes(2 * power)[::2][: num_heads - power]


class AlibiBias(LayerBias):
    """-slope times distance, for this rank's heads. No parameters."""

    def __init__(self, num_heads: int, axis: Axis) -> None:
        super().__init__()
        share = num_heads // axis.size
        self.slopes = slopes(num_heads)[axis.rank * share : (axis.rank + 1) * share]

    def forward(self, q: Tensor) -> tuple[Tensor, ...]:
        distances = torch.arange(q.shape[1], dtype=torch.float32, device=q.device)
        return (-torch.tensor(self.slopes, dtype=torch.float32, device=q.device)[:, None] * distances,)


class Alibi(Encoding):
    """ALiBi."""

    attends = "distance bias"

    def bias(self, axis: Axis) -> LayerBias:
        return AlibiBias(self.config.num_heads, axis)
