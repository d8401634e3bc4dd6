"""KERPLE's logarithmic bias (Chi et al., arXiv 2205.09921): scores fall with the logarithm of distance.

    score(i, j) = q_i . k_j / sqrt R - r1_h log(1 + r2_h (i - j))

r1 and r2 are positive and learned for each head and layer. As in the authors' code, they start uniformly distributed up to 2
and 1, and are at least 0.01.

Shapes as in model/transformer.py.
"""

import math

import torch
from torch import Tensor

from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias
from megatape.nn.parameters import Uniform, parameter

# Minimum of r1 and r2.
MINIMUM = 0.01


def _up_to(maximum: float) -> Uniform:
    """Return the uniform distribution from MINIMUM to `maximum`."""
    bound = (maximum - MINIMUM) / 2
    return Uniform(bound, middle=MINIMUM + bound)


class LogarithmicBias(LayerBias):
    """Bias by distance.

    Attributes:
        slope: r1, [H], sharded by heads.
        rate: r2, [H], sharded by heads.
    """

    def __init__(self, num_heads: int, tensor_axis: Axis) -> None:
        super().__init__()
        bounds = (MINIMUM, math.inf)
        self.slope = parameter((num_heads,), tensor_axis, 0, init=_up_to(2.0), bounds=bounds)
        self.rate = parameter((num_heads,), tensor_axis, 0, init=_up_to(1.0), bounds=bounds)

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        distances = torch.arange(k.shape[1], dtype=torch.float32, device=k.device)  # [K]
        # The optimizer keeps both positive. abs only matters for weights from elsewhere, whose logarithm might be undefined.
        slope = self.local_heads(self.slope).float().abs()[:, None]  # [H/T, 1]
        rate = self.local_heads(self.rate).float().abs()[:, None]  # [H/T, 1]
        by_distance = -slope * torch.log1p(rate * distances)  # [H/T, K]
        return (by_distance,)


class KerpleLog(Encoding):
    """KERPLE with a logarithmic kernel."""

    equation = "score(i, j) = q_i . k_j / sqrt R - r1_h log(1 + r2_h (i - j))"
    score_bias = "distance"

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return LogarithmicBias(self.config.num_heads, tensor_axis)
