"""CoPE, positions that are counted by content (Golovneva et al., arXiv 2405.18719), in one file.

    megatape pretrain --import examples/cope.py --config FILE --set model.encoding=cope

The score of query i and key j gets q_i . E[p_ij]. The position p_ij is the sum of the gates sigmoid(q_i . k_m / sqrt R) of the
tokens m = j .. i, at most NUM_POSITIONS - 1; between two whole numbers the rows of E are interpolated. Every layer has its own
E, which its heads share.
"""

import torch
from torch import Tensor

from megatape.attention.bias import ScoreBias
from megatape.model.encodings.encoding import Encoding, Features, LayerBias
from megatape.parallel.mesh import Axis
from megatape.parallel.parameters import parameter
from megatape.registry import ENCODINGS, EncodingEntry

NUM_POSITIONS = 64


class CopeScores(ScoreBias):
    """weights: queries [B, N, H/T, R], keys [B, N, L/T, R] and E [R, NUM_POSITIONS], all float32."""

    def __init__(self, *weights: Tensor) -> None:
        self.weights = weights

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """Block of the bias, [B, H/T, rows, columns]; `columns` begin at the first key, since positions sum over keys."""
        assert columns.start == 0
        q, k, embedding = weights
        q, k = q[:, rows].transpose(1, 2), k[:, columns].transpose(1, 2)
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        gates = torch.sigmoid(q @ k.mT * q.shape[-1] ** -0.5).tril(rows.start)
        positions = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=embedding.shape[1] - 1)
        below, above = positions.floor(), positions.ceil()
        by_position = q @ embedding  # [B, H/T, rows, NUM_POSITIONS]
        share = positions - below
        return (1 - share) * by_position.gather(-1, below.long()) + share * by_position.gather(-1, above.long())


class CopeBias(LayerBias):
    """embedding: E, on all tensor-parallel ranks."""

    def __init__(self, num_heads: int, head_dim: int, axis: Axis) -> None:
        super().__init__()
        self.multiply_adds = num_heads * (head_dim + 2)
        self.embedding = parameter((head_dim, NUM_POSITIONS), axis, init=0.0, decay=False, role="embedding")

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        return q.float(), k.float(), self.embedding.float()

    def scores(self, weights: tuple[Tensor, ...], state: Tensor | None) -> ScoreBias:
        return CopeScores(*weights)


class Cope(Encoding):
    """Positions by content."""

    attends = "pair bias"

    def bias(self, axis: Axis) -> LayerBias:
        return CopeBias(self.config.num_heads, self.config.head_dim, axis)


ENCODINGS["cope"] = EncodingEntry(f"{__name__}:Cope", "CoPE, positions counted by content", "encoding_cope:Cope")
