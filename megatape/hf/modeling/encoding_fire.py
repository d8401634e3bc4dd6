"""FIRE (arXiv 2310.04418): the bias is a learned function of the distance relative to the query's position."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from .encoding import Encoding, LayerBias, Pairs


class FireBias(LayerBias):
    """A network of one hidden layer of 32 ReLU units; c (`log_scale`) and t (`threshold`) are learned too."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.inner_weight = nn.Parameter(torch.empty(32, 1))
        self.inner_bias = nn.Parameter(torch.empty(32))
        self.outer_weight = nn.Parameter(torch.empty(num_heads, 32))
        self.outer_bias = nn.Parameter(torch.empty(num_heads))
        self.log_scale = nn.Parameter(torch.empty(1))
        self.threshold = nn.Parameter(torch.empty(1))

    def forward(self, pairs: Pairs) -> Tensor:
        assert pairs.state is not None
        scale = self.log_scale.float()
        largest = torch.log1p((scale * torch.maximum(pairs.state, (self.threshold.float() * 512).abs())).abs())
        share = torch.log1p((scale * pairs.distance).abs()) / (largest[..., None] + 1e-6)  # [B, N, K]
        hidden = F.relu(F.linear(share[..., None], self.inner_weight.float(), self.inner_bias.float()))
        return F.linear(hidden, self.outer_weight.float(), self.outer_bias.float()).permute(0, 3, 1, 2)

    def init_weights(self, std: float) -> None:
        init.normal_(self.inner_weight, mean=0.0, std=std)
        init.normal_(self.outer_weight, mean=0.0, std=std)
        init.zeros_(self.inner_bias)
        init.zeros_(self.outer_bias)
        init.constant_(self.log_scale, 0.1)
        init.ones_(self.threshold)


class Fire(Encoding):
    """The state is constant: the positions as float32 (exact up to 2^24)."""

    def state(self, positions: Tensor) -> Tensor:
        return positions.float()

    def bias(self) -> LayerBias:
        return FireBias(self.config.num_attention_heads)
