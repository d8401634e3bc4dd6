"""CoPE (Golovneva et al., arXiv 2405.18719): a query counts only those tokens that its gates select.

    score(i, j) = q_i . k_j / sqrt R + q_i . E[p_ij]
    p_ij = min(sum over m = j .. i of sigmoid(q_i . k_m / sqrt R), NUM_POSITIONS - 1)

The position p_ij of key j, seen from query i, is the sum of the gates between them. It is a fraction, so columns of E are
interpolated. Every layer has its own E, shared by its heads and starting at zero. As printed in the paper, q . E is not divided
by sqrt R. `CopeScaled` divides it, as the authors' code does by default.

Shapes as in model/transformer.py.
"""

from typing import ClassVar

import torch
from torch import Tensor

from megatape.attention.bias import ScoreBias
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias
from megatape.nn.parameters import parameter

# Number of learned positions, as in the paper.
NUM_POSITIONS = 64


class CopeScores(ScoreBias):
    """q_i . E[p_ij].

    Attributes:
        weights: Queries [B, N, H/T, R], keys [B, K, L/T, R] and E [R, NUM_POSITIONS], all float32.
    """

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """Compute a block of the bias, [B, H/T, rows, columns]. A position is a sum over later keys, up to the query's own."""
        q, k, embedding = weights
        past = k.shape[1] - q.shape[1]
        q = q[:, rows.start - past : rows.stop - past].transpose(1, 2)  # [B, H/T, rows, R]
        k = k[:, columns].transpose(1, 2)  # [B, L/T, columns, R]
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)  # [B, H/T, columns, R]

        # p_ij sums gates over the keys m = j .. i: a cumulative sum from the right.
        gates = torch.sigmoid(q @ k.mT * q.shape[-1] ** -0.5).tril(rows.start - columns.start)  # [B, H/T, rows, columns]
        positions = gates.flip(-1).cumsum(-1).flip(-1)
        positions = positions.clamp(max=embedding.shape[1] - 1)

        # q . E[p_ij], interpolated between two columns of E. An index must not be NaN.
        below = positions.floor().nan_to_num().long()
        above = positions.ceil().nan_to_num().long()
        by_position = q @ embedding  # [B, H/T, rows, NUM_POSITIONS]
        share = positions - positions.floor()
        return (1 - share) * by_position.gather(-1, below) + share * by_position.gather(-1, above)


class CopeBias(LayerBias):
    """Bias by content-based positions.

    Attributes:
        embedding: E, [R, NUM_POSITIONS], on all tensor-parallel ranks.
        scale: Factor on q . E.
    """

    form = CopeScores

    def __init__(self, num_heads: int, head_dim: int, tensor_axis: Axis, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.multiply_adds = num_heads * head_dim * NUM_POSITIONS
        self.pair_multiply_adds = num_heads * head_dim
        self.embedding = parameter(
            (head_dim, NUM_POSITIONS),
            tensor_axis,
            init=0.0,
            decay=False,
            role="position",
        )

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        return q.float(), k.float(), self.embedding.float() * self.scale


class Cope(Encoding):
    """Positions counted by content."""

    equation = """
        score(i, j) = q_i . k_j / sqrt R + q_i . E[p_ij]
        p_ij = min(sum over m = j .. i of sigmoid(q_i . k_m / sqrt R), 63)
    """
    score_bias = "pair"
    scaled: ClassVar[bool] = False

    def bias(self, tensor_axis: Axis) -> LayerBias:
        head_dim = self.config.head_dim
        scale = head_dim**-0.5 if self.scaled else 1.0
        return CopeBias(self.config.num_heads, head_dim, tensor_axis, scale)


class CopeScaled(Cope):
    """CoPE with the whole score divided by sqrt R."""

    equation = "score(i, j) = (q_i . k_j + q_i . E[p_ij]) / sqrt R"
    scaled = True
