"""Sinusoidal embeddings (arXiv 1706.03762), added to the token embeddings."""

import torch
from torch import Tensor

from .encoding import Encoding, PositionEmbedding


class SinusoidalEmbedding(PositionEmbedding):
    """Sines in even columns, cosines in odd ones. No parameters."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        column = torch.arange(0, x.shape[-1], 2, dtype=torch.float64, device=positions.device)
        angles = positions.to(torch.float64)[..., None] * 10000.0 ** (-column / x.shape[-1])
        return x + torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(torch.float32).to(x.dtype)


class Sinusoidal(Encoding):
    """See above."""

    def embedding(self) -> PositionEmbedding:
        return SinusoidalEmbedding()
