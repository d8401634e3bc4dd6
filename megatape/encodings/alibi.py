"""ALiBi (Press et al., arXiv 2108.12409): each head's scores fall linearly with the distance."""

import math

import torch
from torch import Tensor

from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias


def slopes(num_heads: int, device: torch.device | None = None) -> Tensor:
    """2^(-8 h / H) for the heads h = 1 .. H if H is a power of two, float64 [H].

    Otherwise those of the next lower power, then every second one of the next higher power, as in
    the ALiBi authors' code. They are made on `device`, since a copy from the host would make it wait for a GPU.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    heads = torch.arange(1, power + 1, dtype=torch.float64, device=device)
    if power < num_heads:
        heads = torch.cat([heads, torch.arange(0.5, num_heads - power, dtype=torch.float64, device=device)])
    return torch.exp2(-8 / power * heads)


class AlibiBias(LayerBias):
    """-slope times distance, for this rank's heads. No parameters."""

    def __init__(self, num_heads: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.tensor_axis = tensor_axis

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        distances = torch.arange(k.shape[1], dtype=torch.float32, device=q.device)
        own = slopes(self.num_heads, q.device).chunk(self.tensor_axis.size)[self.tensor_axis.rank]
        return (-self.local_heads(own).float()[:, None] * distances,)


class Alibi(Encoding):
    """ALiBi.

    score(i, j) = q_i . k_j / sqrt R - slope_h (i - j)
    """

    score_bias = "distance"

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return AlibiBias(self.config.num_heads, tensor_axis)
