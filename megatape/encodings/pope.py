"""PoPE (Gopalakrishnan et al., arXiv 2509.10534): polar coordinates, with lengths from content and angles from positions.

    score(i, j) = sum over c of mu_ic mu_jc cos((i - j) theta_c - delta_c) / sqrt R
    mu = softplus of query and key,    theta_c = base^(-c / R),    c = 0 .. R - 1

In RoPE, two channels share a plane, so content turns it, too. Here each channel has a plane of its own, so queries and keys are
2R wide. delta is learned for each key/value head, between -2 pi and 0. It starts at 0, in `PopeUniform` anywhere in between.

Shapes as in model/transformer.py.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, TokenFeatures
from megatape.encodings.rope import rotary_state
from megatape.nn.parameters import Uniform, parameter


class Phases(TokenFeatures):
    """Cosine and sine of delta, each [B, N, L/T, R] and the same for all tokens.

    Attributes:
        delta: Phases [L, R], sharded by heads.
    """

    def __init__(
        self,
        num_channels: int,
        head_dim: int,
        tensor_axis: Axis,
        init: float | Uniform,
    ) -> None:
        super().__init__()
        shape = (num_channels, head_dim)
        bounds = (-2 * math.pi, 0.0)
        self.delta = parameter(
            shape,
            tensor_axis,
            0,
            init=init,
            decay=False,
            role="vector",
            bounds=bounds,
        )

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        batch_size, length = k.shape[:2]
        delta = self.delta.float()
        cos_delta = delta.cos().expand(batch_size, length, -1, -1)
        sin_delta = delta.sin().expand(batch_size, length, -1, -1)
        return cos_delta, sin_delta


class Pope(Encoding):
    """Polar coordinates.

    The state is constant: cosines and sines of R angles, [B, N, 1, 2R].
    """

    equation = """
        score(i, j) = sum over c of mu_ic mu_jc cos((i - j) theta_c - delta_c) / sqrt R
        mu = softplus of query and key,  theta_c = model.rotary_base^(-c / R)
    """
    initial_phase: ClassVar[float | Uniform] = 0.0

    @property
    def qk_width(self) -> int:
        return 2 * self.config.head_dim

    def state(self, position_ids: Tensor) -> Tensor:
        return rotary_state(position_ids, 2 * self.config.head_dim, self.config.rotary_base)

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        return Phases(self.config.num_kv_heads, self.config.head_dim, tensor_axis, self.initial_phase)

    def rotate_qk(
        self,
        q: Tensor,
        k: Tensor,
        state: Tensor | None,
        features: Features,
    ) -> tuple[Tensor, Tensor]:
        """Return queries and keys of 2R channels, see Encoding: mu times cosines, then mu times sines."""
        assert state is not None
        cosines, sines = state.chunk(2, dim=-1)  # [B, N, 1, R] each
        cos_delta, sin_delta = features  # [B, N, L/T, R] each

        # Attention divides by the square root of the width, which is 2R here.
        query_lengths = F.softplus(q.float()) * math.sqrt(2)  # [B, N, H/T, R]
        key_lengths = F.softplus(k.float())  # [B, N, L/T, R]
        queries = torch.cat([query_lengths * cosines, query_lengths * sines], dim=-1)

        # Keys have the angles j theta + delta.
        shifted_cosines = cosines * cos_delta - sines * sin_delta
        shifted_sines = sines * cos_delta + cosines * sin_delta
        keys = torch.cat([key_lengths * shifted_cosines, key_lengths * shifted_sines], dim=-1)
        return queries.to(q.dtype), keys.to(k.dtype)


class PopeUniform(Pope):
    """PoPE with delta starting anywhere between -2 pi and 0."""

    equation = Pope.equation
    initial_phase = Uniform(math.pi, middle=-math.pi)
