"""T5's relative bias (Raffel et al., arXiv 1910.10683, section 2.1): each head learns one number per bucket of distances.

    score(i, j) = q_i . k_j / sqrt R + table_h[bucket(i - j)]

Distances 0 .. 15 have a bucket each. Larger ones share 16 buckets with logarithmically growing widths. The last bucket, from
113 on, is open-ended, so any length works.

Two things differ from T5, as in the TAPE authors' code: every layer has its own table, where T5's layers share one, and scores
are divided by sqrt R, where T5 does not divide.

Shapes as in model/transformer.py.
"""

import math

import torch
from torch import Tensor

from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias
from megatape.nn.parameters import parameter

NUM_BUCKETS = 32
# Where the logarithmic range of the shared buckets ends.
MAX_DISTANCE = 128


def buckets(length: int, device: torch.device) -> Tensor:
    """Return the bucket of each distance 0 .. length - 1, int64 [length]."""
    distances = torch.arange(length, device=device)
    num_exact = NUM_BUCKETS // 2
    # Fraction of the logarithmic range from num_exact to MAX_DISTANCE
    log_ratio = torch.log(distances.clamp(min=num_exact).to(torch.float64) / num_exact)
    share = log_ratio / math.log(MAX_DISTANCE / num_exact)
    shared_bucket = num_exact + (share * (NUM_BUCKETS - num_exact)).long()
    shared_bucket = shared_bucket.clamp(max=NUM_BUCKETS - 1)
    return torch.where(distances < num_exact, distances, shared_bucket)


class T5Bias(LayerBias):
    """Bias by bucket.

    Attributes:
        table: [H, NUM_BUCKETS], sharded by heads.
    """

    def __init__(self, num_heads: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.table = parameter((num_heads, NUM_BUCKETS), tensor_axis, 0, decay=False, role="embedding")

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        table = self.local_heads(self.table).float()
        by_distance = table[:, buckets(k.shape[1], q.device)]  # [H/T, K]
        return (by_distance,)


class T5(Encoding):
    """Relative bias by buckets of distances."""

    equation = "score(i, j) = q_i . k_j / sqrt R + table_h[bucket(i - j)]"
    score_bias = "distance"

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return T5Bias(self.config.num_heads, tensor_axis)
