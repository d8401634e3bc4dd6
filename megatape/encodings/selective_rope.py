"""Selective RoPE (Movahedi et al., arXiv 2511.17388): content decides how far each token turns all later ones.

    score(i, j) = q_i^T R(phi_i - phi_j) k_j / sqrt R
    R(phi) turns plane k by the angle 500,000^(-2k/R) phi_k
    phi_i = sum over j = 1 .. i of SiLU(convolution of width 4 of z)_j,    [L, R/2]
    z = W_up W_down u,    u = h with each of its L slices normalized

RoPE is the special case in which every step is 1. Query and key norms come before the rotation, as with all encodings here.

Choices that the paper leaves open are separate classes: steps without SiLU, the default of the authors' code; the same with
W_up W_down of rank 32, as in the README and the benchmarks of that code; and steps with a learned constant and a gate.

Shapes as in model/transformer.py.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.distributed.mesh import Axis
from megatape.encodings.convolution import causal_convolution
from megatape.encodings.encoding import Encoding, Features, SequenceFeatures, TokenFeatures
from megatape.encodings.rope import padded_planes, rotated_size
from megatape.nn.linear import ColumnLinear
from megatape.nn.parameters import Uniform, parameter

# Inner size of W_up W_down, the default of the authors' code.
RANK = 16
# Width of the convolution.
WIDTH = 4
BASE = 500_000.0


class Turns(TokenFeatures):
    """z, float32 [B, N, L/T, R/2]; with a gate also sigmoid(U u + b), [B, N, L/T, 1].

    Attributes:
        down: W_down, [rank, D], on all tensor-parallel ranks.
        up: W_up, [L R/2, rank], sharded by heads.
        gate: U [L, D] and b [L], sharded by heads, or None.
    """

    def __init__(
        self,
        hidden_size: int,
        num_channels: int,
        rotated: int,
        tensor_axis: Axis,
        gated: bool = False,
        rank: int = RANK,
    ) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.planes = rotated // 2
        self.multiply_adds = rank * (hidden_size + num_channels * self.planes)
        self.down = parameter((rank, hidden_size), tensor_axis, role="position")
        self.up = parameter((num_channels * self.planes, rank), tensor_axis, 0, role="position")
        self.gate: ColumnLinear | None = None
        if gated:
            self.gate = ColumnLinear(hidden_size, num_channels, tensor_axis, bias=True, role="position")
            self.multiply_adds += hidden_size * num_channels

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        u = h.unflatten(-1, (self.num_channels, -1)).float()  # [B, N, L, D/L]
        u = F.normalize(u, dim=-1).flatten(-2).to(h.dtype)  # [B, N, D]
        z = F.linear(F.linear(u, self.down), self.up).float()  # [B, N, L/T * R/2]
        z = z.unflatten(-1, (-1, self.planes))  # [B, N, L/T, R/2]
        if self.gate is None:
            return (z,)
        gate = torch.sigmoid(self.gate(u).float())[..., None]  # [B, N, L/T, 1]
        return z, gate


class Phases(SequenceFeatures):
    """phi, float64 [B, N, L/T, R/2], because it grows with every token and its cosines depend on its last digits.

    The carry has the last tokens' inputs of the convolution, then the last phi.

    Attributes:
        by_silu: Whether to apply SiLU to the convolution.
        weight: Weights of the convolution, [L R/2, 4], sharded by heads.
        constant: a in the constant step exp(a), [L R/2], sharded by heads, or None.
    """

    def __init__(
        self, num_channels: int, rotated: int, tensor_axis: Axis, by_silu: bool = True, constant: bool = False
    ) -> None:
        super().__init__()
        self.by_silu = by_silu
        size = num_channels * rotated // 2
        self.weight = parameter((size, WIDTH), tensor_axis, 0, init=Uniform(WIDTH**-0.5), role="vector")
        self.constant = None
        if constant:
            self.constant = parameter((size,), tensor_axis, 0, init=0.0, decay=False, role="vector")

    def forward(
        self,
        features: Features,
        document_starts: DocumentStarts,
        carry: Features,
    ) -> tuple[Features, Features]:
        z, *gate = features
        num_channels = z.shape[2]
        weight = self.local_heads(self.weight).float().unflatten(0, (num_channels, -1))  # [L/T, R/2, 4]
        steps, inputs = causal_convolution(z, weight, document_starts, carry[:1])  # [B, N, L/T, R/2]
        if self.by_silu:
            steps = F.silu(steps)
        if self.constant is not None:
            constant = self.local_heads(self.constant).float().exp()
            steps = steps + constant.view(num_channels, -1)
        if gate:
            steps = gate[0] * steps
        phi = steps.double().cumsum(1)
        if carry:
            phi = phi + carry[1]
        last_phi = phi[:, -1:]
        return (phi,), (inputs, last_phi)


def rotations(phi: Tensor, head_dim: int) -> Tensor:
    """Return phi's rotations as a position tensor, [B, N, L/T, R/2] -> float32 [B, N, L/T, R]. Missing planes do not rotate."""
    num_planes = phi.shape[-1]
    plane = torch.arange(num_planes, dtype=torch.float64, device=phi.device)
    angles = phi * BASE ** (-plane / num_planes)
    return padded_planes(angles.cos(), angles.sin(), head_dim).float()


class SelectiveRope(Encoding):
    """Angles summed along the sequence."""

    equation = """
        score(i, j) = q_i^T R(phi_i - phi_j) k_j / sqrt R
        phi_i = sum over j = 1 .. i of SiLU(convolution of width 4 of W_up W_down u)_j
    """
    rank: ClassVar[int] = RANK
    by_silu: ClassVar[bool] = True
    constant: ClassVar[bool] = False
    gated: ClassVar[bool] = False

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        config = self.config
        return Turns(
            config.hidden_size,
            config.num_kv_heads,
            rotated_size(config),
            tensor_axis,
            self.gated,
            self.rank,
        )

    def sequence_features(self, tensor_axis: Axis) -> SequenceFeatures:
        config = self.config
        return Phases(
            config.num_kv_heads,
            rotated_size(config),
            tensor_axis,
            self.by_silu,
            self.constant,
        )

    def rotate_qk(
        self,
        q: Tensor,
        k: Tensor,
        state: Tensor | None,
        features: Features,
    ) -> tuple[Tensor, Tensor]:
        (phi,) = features
        e = rotations(phi, self.config.head_dim)
        return rotate_qk(q, k, PositionState(e))


class SelectiveRopeLinear(SelectiveRope):
    """Selective RoPE without SiLU, so that content turns planes in both directions alike."""

    equation = "phi_i = sum over j = 1 .. i of (convolution of width 4 of W_up W_down u)_j"
    by_silu = False


class SelectiveRopeLinear32(SelectiveRopeLinear):
    """Selective RoPE without SiLU, of rank 32."""

    equation = "phi_i = sum over j = 1 .. i of (convolution of width 4 of W_up W_down u)_j, W_down of 32 rows"
    rank = 32


class SelectiveRopeConstant(SelectiveRope):
    """Selective RoPE with a learned constant step. Without content it is RoPE."""

    equation = "phi_i = sum over j = 1 .. i of (SiLU(convolution)_j + exp a)"
    constant = True


class SelectiveRopeGated(SelectiveRopeConstant):
    """Selective RoPE with a learned constant step, and a gate for each key/value head. A closed gate turns nothing."""

    equation = "phi_i = sum over j = 1 .. i of sigmoid(U u_j + b) (SiLU(convolution)_j + exp a)"
    gated = True
