"""RePo (Li et al., arXiv 2512.14391): content decides at which real-valued position a token is, for each head and layer.

    score(i, j) = q_i^T R(z_i - z_j) k_j / sqrt R
    z = W_z (SiLU(W_g h) * W_c h),    [L]

R is RoPE's rotation. The inner size of W_g and W_c is D/8, as in the authors' code. Positions depend on content alone, so a
layer only knows the order of tokens by its causal mask, as in NoPE.

The authors keep RoPE in the first layers, 5 of 16. To do the same, set model.layers to "rope*5, repo*11". They have as many
positions as heads. With grouped queries, heads that share a key share its position here.

Shapes as in model/transformer.py.
"""

import torch.nn.functional as F
from torch import Tensor

from megatape.attention.rotation import PositionState, rotate_qk
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, TokenFeatures
from megatape.encodings.rope import frequencies, padded_planes, rotated_size
from megatape.nn.linear_function import linear
from megatape.nn.parameters import parameter

# Ratio of the hidden size to the inner size of W_g and W_c.
REDUCTION = 8


class LearnedPositions(TokenFeatures):
    """z, float32 [B, N, L/T, 1].

    Attributes:
        gate: W_g, [D/8, D], on all tensor-parallel ranks.
        content: W_c, [D/8, D], on all ranks.
        up: W_z, [L, D/8], sharded by heads.
    """

    def __init__(self, hidden_size: int, num_channels: int, tensor_axis: Axis) -> None:
        super().__init__()
        inner_size = max(hidden_size // REDUCTION, 1)
        self.multiply_adds = inner_size * (2 * hidden_size + num_channels)
        self.gate = parameter((inner_size, hidden_size), tensor_axis, role="position")
        self.content = parameter((inner_size, hidden_size), tensor_axis, role="position")
        self.up = parameter((num_channels, inner_size), tensor_axis, 0, role="position")

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        inner = F.silu(linear(h, self.gate)) * linear(h, self.content)  # [B, N, D/8]
        z = F.linear(inner, self.up).float()  # [B, N, L/T]
        return (z[..., None],)


class RePo(Encoding):
    """RoPE at positions computed from content."""

    equation = """
        score(i, j) = q_i^T R(z_i - z_j) k_j / sqrt R
        z = W_z (SiLU(W_g h) * W_c h)
    """

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        return LearnedPositions(self.config.hidden_size, self.config.num_kv_heads, tensor_axis)

    def rotate_qk(
        self,
        q: Tensor,
        k: Tensor,
        state: Tensor | None,
        features: Features,
    ) -> tuple[Tensor, Tensor]:
        (z,) = features  # [B, N, L/T, 1]
        config = self.config
        thetas, _ = frequencies(rotated_size(config), config.rotary_base, None, z.device)
        angles = z.double() * thetas  # [B, N, L/T, rotated / 2]
        e = padded_planes(angles.cos(), angles.sin(), config.head_dim).float()
        return rotate_qk(q, k, PositionState(e))
