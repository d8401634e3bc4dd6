"""T5's relative bias (arXiv 1910.10683): a learned number for each head and bucket of distances.

16 buckets are of one distance each and 16 of growing width.
"""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .encoding import Encoding, LayerBias, Pairs


class T5Bias(LayerBias):
    """table: [H, buckets]."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(num_heads, 32))

    def forward(self, pairs: Pairs) -> Tensor:
        distance = pairs.distance.clamp(min=0)
        share = torch.log(distance.clamp(min=16).to(torch.float64) / 16) / math.log(128 / 16)
        bucket = torch.where(distance < 16, distance, (16 + (share * 16).long()).clamp(max=31))
        return self.table.float()[:, bucket][None]

    def init_weights(self, std: float) -> None:
        init.normal_(self.table, mean=0.0, std=std)


class T5(Encoding):
    """See above."""

    def bias(self) -> LayerBias:
        return T5Bias(self.config.num_attention_heads)
