"""ALiBi (Press et al., arXiv 2108.12409, section 3): each head's scores fall linearly with distance.

    score(i, j) = q_i . k_j / sqrt R - slope_h (i - j)
    slope_h = 2^(-8 h / H),    h = 1 .. H,    if H is a power of two

ALiBi has no parameters. Shapes as in model/transformer.py.
"""

import math

import torch
from torch import Tensor

from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias


def slopes(num_heads: int, device: torch.device | None = None) -> Tensor:
    """Return the slope of each head, float64 [H].

    If H is not a power of two, they are those of the next lower power of two, then every second slope of the next higher one,
    as in the ALiBi authors' code.

    The slopes are computed on `device`: copying them from the host would block until the GPU is idle.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    heads = torch.arange(1, power + 1, dtype=torch.float64, device=device)
    if power < num_heads:
        # Every second one of 2 * power heads: h / (2 * power) = 0.5, 1.5, ... / power
        others = torch.arange(0.5, num_heads - power, dtype=torch.float64, device=device)
        heads = torch.cat([heads, others])
    return torch.exp2(-8 / power * heads)


class AlibiBias(LayerBias):
    """Minus slope times distance. No parameters."""

    def __init__(self, num_heads: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.tensor_axis = tensor_axis

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        distances = torch.arange(k.shape[1], dtype=torch.float32, device=q.device)  # [K]
        all_slopes = slopes(self.num_heads, q.device)
        rank_slopes = all_slopes.chunk(self.tensor_axis.size)[self.tensor_axis.rank]  # [H/T]
        by_distance = -self.local_heads(rank_slopes).float()[:, None] * distances  # [H/T, K]
        return (by_distance,)


class Alibi(Encoding):
    """Attention with linear biases."""

    equation = "score(i, j) = q_i . k_j / sqrt R - slope_h (i - j)"
    score_bias = "distance"

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return AlibiBias(self.config.num_heads, tensor_axis)
