"""Selective RoPE (Movahedi et al., arXiv 2511.17388): the content decides how far each token turns what follows it.

    z = W_up W_down u, where u is h with each of its L slices divided by its norm
    phi_i = sum over j = 1 .. i of SiLU(convolution of width 4 of z)_j        [L, R/2]

Queries and keys are rotated by the angles 500,000^(-2k/R) phi_k; query and key norms come before the rotation, as with all
encodings here. What the paper leaves open has classes of its own: steps without SiLU, which is the authors' default, and steps
with a learned constant and a gate.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, SequenceFeatures, TokenFeatures, causal_convolution
from megatape.encodings.rope import padded_planes, rotated_size
from megatape.nn.linear import ColumnLinear
from megatape.nn.parameters import Uniform, parameter

RANK = 16
WIDTH = 4
BASE = 500_000.0


class Turns(TokenFeatures):
    """z, float32 [B, N, L/T, R/2], and with a gate sigmoid(U u + b), [B, N, L/T, 1].

    down: [16, D], on all ranks; up: [L R/2, 16], divided by heads.
    """

    def __init__(self, hidden_size: int, num_channels: int, rotated: int, tensor_axis: Axis, gated: bool = False) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.planes = rotated // 2
        self.multiply_adds = RANK * (hidden_size + num_channels * self.planes)
        self.down = parameter((RANK, hidden_size), tensor_axis, role="position")
        self.up = parameter((num_channels * self.planes, RANK), tensor_axis, 0, role="position")
        self.gate = ColumnLinear(hidden_size, num_channels, tensor_axis, bias=True, role="position") if gated else None
        self.multiply_adds += hidden_size * num_channels if gated else 0

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        u = F.normalize(h.unflatten(-1, (self.num_channels, -1)).float(), dim=-1).flatten(-2).to(h.dtype)
        z = F.linear(F.linear(u, self.down), self.up).float().unflatten(-1, (-1, self.planes))
        return (z,) if self.gate is None else (z, torch.sigmoid(self.gate(u).float())[..., None])


class Phases(SequenceFeatures):
    """phi, float64 [B, N, L/T, R/2]: it grows with the tokens, and its cosines need its last digits.

    The carry is what the convolution reads of the last tokens, and the last phi.

    weight: of the convolution, [L R/2, 4], divided by heads. constant: a of the steps exp(a), [L R/2], or None.
    """

    def __init__(
        self, num_channels: int, rotated: int, tensor_axis: Axis, by_silu: bool = True, constant: bool = False
    ) -> None:
        super().__init__()
        self.by_silu = by_silu
        width = num_channels * rotated // 2
        self.weight = parameter((width, WIDTH), tensor_axis, 0, init=Uniform(WIDTH**-0.5), role="vector")
        self.constant = parameter((width,), tensor_axis, 0, init=0.0, decay=False, role="vector") if constant else None

    def forward(self, features: Features, document_starts: DocumentStarts, carry: Features) -> tuple[Features, Features]:
        z, *gate = features
        kernels = self.local_heads(self.weight).float().unflatten(0, (z.shape[2], -1))
        steps, inputs = causal_convolution(z, kernels, document_starts, carry[:1])
        if self.by_silu:
            steps = F.silu(steps)
        if self.constant is not None:
            steps = steps + self.local_heads(self.constant).float().exp().view(z.shape[2], -1)
        if gate:
            steps = gate[0] * steps
        phi = steps.double().cumsum(1)
        if carry:
            phi = phi + carry[1]
        return (phi,), (inputs, phi[:, -1:])


def rotations(phi: Tensor, head_dim: int) -> Tensor:
    """The position tensor [B, N, L/T, R] of phi [B, N, L/T, R/2], float32. Planes beyond those of phi do not rotate."""
    plane = torch.arange(phi.shape[-1], dtype=torch.float64, device=phi.device)
    angles = phi * BASE ** (-plane / phi.shape[-1])
    return padded_planes(angles.cos(), angles.sin(), head_dim).float()


class SelectiveRope(Encoding):
    """Angles that sum along the sequence.

    score(i, j) = q_i^T R(phi_i - phi_j) k_j / sqrt R
    phi_i = sum over j = 1 .. i of SiLU(convolution of width 4 of W_up W_down u)_j
    """

    by_silu: ClassVar[bool] = True
    constant: ClassVar[bool] = False
    gated: ClassVar[bool] = False

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        return Turns(self.config.hidden_size, self.config.num_kv_heads, rotated_size(self.config), tensor_axis, self.gated)

    def sequence_features(self, tensor_axis: Axis) -> SequenceFeatures:
        return Phases(self.config.num_kv_heads, rotated_size(self.config), tensor_axis, self.by_silu, self.constant)

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None, features: Features) -> tuple[Tensor, Tensor]:
        return rotate_qk(q, k, PositionState(rotations(features[0], self.config.head_dim)))


class SelectiveRopeLinear(SelectiveRope):
    """Selective RoPE whose steps are the convolution itself, so that content turns both ways alike.

    phi_i = sum over j = 1 .. i of (convolution of width 4 of W_up W_down u)_j
    """

    by_silu = False


class SelectiveRopeConstant(SelectiveRope):
    """Selective RoPE with a learned constant, so that without content it is RoPE.

    phi_i = sum over j = 1 .. i of (SiLU(convolution)_j + exp a)
    """

    constant = True


class SelectiveRopeGated(SelectiveRopeConstant):
    """Selective RoPE with a learned constant and a gate for each key/value head: a closed gate turns nothing.

    phi_i = sum over j = 1 .. i of sigmoid(U u_j + b) (SiLU(convolution)_j + exp a)
    """

    gated = True
