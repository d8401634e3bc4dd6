"""KERPLE's logarithmic bias (arXiv 2205.09921) for exported models."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from transformers import initialization as init

from .encoding import Encoding, LayerBias, Pairs


class KerpleBias(LayerBias):
    """scales: [H, 2]; r1 and r2 are softplus of its columns."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.empty(num_heads, 2))

    def forward(self, pairs: Pairs) -> Tensor:
        r1, r2 = softplus(self.scales.float())[..., None, None].unbind(1)
        return (-r1 * torch.log1p(r2 * pairs.distance.clamp(min=0)))[None]

    def init_weights(self, std: float) -> None:
        init.normal_(self.scales, mean=0.0, std=std)


class Kerple(Encoding):
    """See above."""

    def bias(self) -> LayerBias:
        return KerpleBias(self.config.num_attention_heads)
