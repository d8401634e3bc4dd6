"""T5's relative bias: a learned number for each head and bucket of distances.

Raffel et al., arXiv 1910.10683, section 2.1.

Distances 0 .. 15 have one bucket each. Larger ones share 16 buckets of logarithmically growing width, the last of which
(113 and beyond) is open-ended, so any length works. As in the TAPE authors' code, every layer has its own table (in T5
all layers share that of the first) and scores are divided by sqrt(R) before the bias is added (T5 does not divide).
"""

import math

import torch
from torch import Tensor

from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias
from megatape.nn.parameters import parameter

NUM_BUCKETS = 32
MAX_DISTANCE = 128


def buckets(length: int, device: torch.device) -> Tensor:
    """The bucket of each distance 0 .. length - 1, int64 [length]."""
    distances = torch.arange(length, device=device)
    exact = NUM_BUCKETS // 2
    share = torch.log(distances.clamp(min=exact).to(torch.float64) / exact) / math.log(MAX_DISTANCE / exact)
    coarse = (exact + (share * (NUM_BUCKETS - exact)).long()).clamp(max=NUM_BUCKETS - 1)
    return torch.where(distances < exact, distances, coarse)


class T5Bias(LayerBias):
    """table: [H/T, buckets], the rows of this rank's heads."""

    def __init__(self, num_heads: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.table = parameter((num_heads, NUM_BUCKETS), tensor_axis, 0, decay=False, role="embedding")

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        return (self.local_heads(self.table).float()[:, buckets(k.shape[1], q.device)],)


class T5(Encoding):
    """T5's relative bias.

    score(i, j) = q_i . k_j / sqrt R + table_h[bucket(i - j)]
    """

    score_bias = "distance"

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return T5Bias(self.config.num_heads, tensor_axis)
