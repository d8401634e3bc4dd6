"""PoPE (Gopalakrishnan et al., arXiv 2509.10534): what a key is gives its lengths, where it is gives its angles.

    score(i, j) = sum over c of mu_ic mu_jc cos((i - j) theta_c - delta_c) / sqrt R
    mu = softplus of query and key,  theta_c = base^(-c / R),  c = 0 .. R - 1

delta is learned for each key/value head, between -2 pi and 0, and starts at 0, in `PopeUniform` anywhere there. A plane holds
one channel, so queries and keys are 2R numbers wide.
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
    """Cosine and sine of delta, the same for all tokens: [B, N, L/T, R] each."""

    def __init__(self, num_channels: int, head_dim: int, tensor_axis: Axis, init: float | Uniform) -> None:
        super().__init__()
        bounds = (-2 * math.pi, 0.0)
        self.delta = parameter((num_channels, head_dim), tensor_axis, 0, init=init, decay=False, role="vector", bounds=bounds)

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        delta = self.delta.float()
        return tuple(part.expand(*k.shape[:2], -1, -1) for part in (delta.cos(), delta.sin()))


class Pope(Encoding):
    """The state is constant: cosines and sines of R angles, [B, N, 1, 2R].

    score(i, j) = sum over c of mu_ic mu_jc cos((i - j) theta_c - delta_c) / sqrt R
    mu = softplus of query and key,  theta_c = 10,000^(-c / R)
    """

    initial_phase: ClassVar[float | Uniform] = 0.0

    @property
    def qk_width(self) -> int:
        return 2 * self.config.head_dim

    def state(self, position_ids: Tensor) -> Tensor:
        return rotary_state(position_ids, 2 * self.config.head_dim, self.config.rotary_base)

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        return Phases(self.config.num_kv_heads, self.config.head_dim, tensor_axis, self.initial_phase)

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None, features: Features) -> tuple[Tensor, Tensor]:
        assert state is not None
        cosines, sines = state.chunk(2, dim=-1)
        cos_delta, sin_delta = features
        # Attention divides by the root of the width, which is 2R here.
        queries = F.softplus(q.float()) * math.sqrt(2)
        keys = F.softplus(k.float())
        q = torch.cat([queries * cosines, queries * sines], dim=-1).to(q.dtype)
        shifted = cosines * cos_delta - sines * sin_delta, sines * cos_delta + cosines * sin_delta
        return q, torch.cat([keys * part for part in shifted], dim=-1).to(k.dtype)


class PopeUniform(Pope):
    """PoPE whose delta starts anywhere between -2 pi and 0."""

    initial_phase = Uniform(math.pi, middle=-math.pi)
