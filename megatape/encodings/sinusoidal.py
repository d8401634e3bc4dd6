"""Sinusoidal embeddings (Vaswani et al., arXiv 1706.03762, section 3.5), added to the token embeddings.

    channel 2k:      sin(n 10000^(-2k / D))
    channel 2k + 1:  cos(n 10000^(-2k / D))

They have no parameters. Neither they nor the token embeddings are scaled. Shapes as in model/transformer.py.
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
        thetas, _ = frequencies(x.shape[-1], BASE, None, position_ids.device)  # [D/2]
        angles = position_ids.to(torch.float64)[..., None] * thetas  # [B, N/T, D/2]
        embedding = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)  # [B, N/T, D]
        return x + embedding.to(x.dtype)


class Sinusoidal(Encoding):
    """Sinusoidal embeddings.

    Training adds no random offset, because the model depends on absolute positions.
    """

    equation = "x_n + sin and cos of n 10,000^(-2k / D)"

    def embedding(self, tensor_axis: Axis) -> PositionEmbedding:
        return SinusoidalEmbedding()
