"""Encoding computing something else in each call."""

import torch
from torch import Tensor

from megatape.encodings.encoding import Features
from megatape.encodings.rope import Rope


class NoisyRope(Rope):
    """RoPE with random queries."""

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None, features: Features) -> tuple[Tensor, Tensor]:
        return q + torch.rand_like(q), k
