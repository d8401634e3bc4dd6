"""CoPE (Golovneva et al., arXiv 2405.18719): positions are counted by content.

    score(i, j) = q_i . k_j / sqrt R + q_i . E[p_ij]
    p_ij = min(sum over m = j .. i of sigmoid(q_i . k_m / sqrt R), NUM_POSITIONS - 1)

Between two whole numbers the rows of E are interpolated. Every layer has its own E, which its heads share and which starts at
zero. q . E is not divided by sqrt R, as printed in the paper; in `CopeScaled` it is, as in the authors' code by default.
"""

from typing import ClassVar

import torch
from torch import Tensor

from megatape.attention.bias import ScoreBias
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias
from megatape.nn.parameters import parameter

NUM_POSITIONS = 64  # the paper's


class CopeScores(ScoreBias):
    """weights: queries [B, N, H/T, R], keys [B, K, L/T, R] and E [R, NUM_POSITIONS], all float32."""

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """Block of the bias, [B, H/T, rows, columns]; `columns` begin at the first key, since positions sum over keys."""
        assert columns.start == 0
        q, k, embedding = weights
        past = k.shape[1] - q.shape[1]
        q = q[:, rows.start - past : rows.stop - past].transpose(1, 2)
        k = k[:, columns].transpose(1, 2)
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        gates = torch.sigmoid(q @ k.mT * q.shape[-1] ** -0.5).tril(rows.start)
        positions = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=embedding.shape[1] - 1)
        below, above = (ends.nan_to_num().long() for ends in (positions.floor(), positions.ceil()))  # no index is NaN
        by_position = q @ embedding  # [B, H/T, rows, NUM_POSITIONS]
        share = positions - positions.floor()
        return (1 - share) * by_position.gather(-1, below) + share * by_position.gather(-1, above)


class CopeBias(LayerBias):
    """embedding: E, on all tensor-parallel ranks. scale: a factor on q . E."""

    form = CopeScores

    def __init__(self, num_heads: int, head_dim: int, tensor_axis: Axis, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.multiply_adds = num_heads * head_dim * NUM_POSITIONS
        self.pair_multiply_adds = num_heads * head_dim
        self.embedding = parameter((head_dim, NUM_POSITIONS), tensor_axis, init=0.0, decay=False, role="position")

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        return q.float(), k.float(), self.embedding.float() * self.scale


class Cope(Encoding):
    """Positions by content.

    score(i, j) = q_i . k_j / sqrt R + q_i . E[p_ij]
    p_ij = min(sum over m = j .. i of sigmoid(q_i . k_m / sqrt R), 63)
    """

    score_bias = "pair"
    scaled: ClassVar[bool] = False

    def bias(self, tensor_axis: Axis) -> LayerBias:
        size = self.config.head_dim
        return CopeBias(self.config.num_heads, size, tensor_axis, size**-0.5 if self.scaled else 1.0)


class CopeScaled(Cope):
    """CoPE with all of the score divided by sqrt R.

    score(i, j) = (q_i . k_j + q_i . E[p_ij]) / sqrt R
    """

    scaled = True
