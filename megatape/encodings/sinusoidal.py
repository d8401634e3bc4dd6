"""Sinusoidal embeddings (Vaswani et al., arXiv 1706.03762, section 3.5), added to the token embeddings.

Column 2k is sin(n * 10000^(-2k/C)), column 2k + 1 the cosine. Neither these nor the token embeddings are scaled.
"""

import torch
from torch import Tensor

from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, PositionEmbedding
from megatape.encodings.rope import frequencies

BASE = 10000.0


class SinusoidalEmbedding(PositionEmbedding):
    """Sines and cosines. No parameters."""

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        thetas, _ = frequencies(x.shape[-1], BASE, None, position_ids.device)
        angles = position_ids.to(torch.float64)[..., None] * thetas
        return x + torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(x.dtype)


class Sinusoidal(Encoding):
    """Sinusoidal embeddings.

        x_n + sin and cos of n 10,000^(-2k / C)

    Training positions have no random offset, because the model is a function of absolute positions.
    """

    def embedding(self, tensor_axis: Axis) -> PositionEmbedding:
        return SinusoidalEmbedding()
