"""FIRE (Li et al., arXiv 2310.04418): the bias is a learned function of distance, relative to the query's position.

    score(i, j) = q_i . k_j / sqrt R + b_h(i, j)
    b_h(i, j) = f_h( log(|c (i - j)| + 1) / (log(|c max(i, |t| 512)| + 1) + 1e-6) )

f is an MLP with one hidden layer of 32 ReLU units. c and t are learned scalars. The input of f lies between 0 and 1 at any
length, so f interpolates where other learned functions of distance would extrapolate.

As in the TAPE authors' code, every layer has its own function, the initial threshold is 512 for any training length, and
positions start at 0 in training and evaluation. Training adds no random offset, because the bias depends on absolute positions.

Shapes as in model/transformer.py.
"""

import torch
from torch import Tensor

from megatape.attention.bias import ScoreBias
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias
from megatape.nn.parameters import parameter

# Number of hidden units.
WIDTH = 32
THRESHOLD = 512.0
EPS = 1e-6


def position_state(position_ids: Tensor) -> Tensor:
    """Return position ids as a state, [B, N] -> float32 [B or 1, N].

    A single row suffices if all samples share their ids in memory. Comparing values would block until the GPU is idle.
    """
    if position_ids.stride(0) == 0:
        position_ids = position_ids[:1]
    return position_ids.float()


class FireScores(ScoreBias):
    """Bias b_h(i, j).

    Attributes:
        weights: Positions i of the queries, float32 [B or 1, N]; W_1 [32, 1] and b_1 [32] of the hidden layer, W_2 [H/T, 32]
            and b_2 [H/T] of the output layer; c [1] and t [1].
        past: Number of cached keys, which precede those of the queries' tokens.
    """

    def __init__(self, *weights: Tensor, past: int = 0) -> None:
        super().__init__(*weights)
        self.past = past

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """Compute a block of the bias, [B or 1, H/T, rows, columns]."""
        position_ids, inner_weight, inner_bias, outer_weight, outer_bias, log_scale, threshold = weights
        query_ids = position_ids[:, rows.start - self.past : rows.stop - self.past, None]  # [B, rows, 1]
        normalizer = torch.maximum(query_ids, (threshold * THRESHOLD).abs())
        log_normalizer = torch.log1p((log_scale * normalizer).abs())

        # Positions restart with each document, so within a document, differences of indices are those of positions.
        index = torch.arange(max(rows.stop, columns.stop), dtype=query_ids.dtype, device=query_ids.device)
        distances = index[rows, None] - index[columns]  # [rows, columns]
        share = torch.log1p((log_scale * distances).abs()) / (log_normalizer + EPS)  # [B, rows, columns]

        # Hidden units and heads come first. So rows are long, and the result has the memory layout of the scores.
        hidden = torch.addmm(inner_bias[:, None], inner_weight, share.view(1, -1)).relu_()  # [32, pairs]
        by_head = torch.addmm(outer_bias[:, None], outer_weight, hidden)  # [H/T, pairs]
        return by_head.unflatten(1, share.shape).transpose(0, 1)


class FireBias(LayerBias):
    """Parameters of one layer's function.

    Attributes:
        inner_weight: W_1 [32, 1], on all tensor-parallel ranks.
        inner_bias: b_1 [32], on all ranks.
        outer_weight: W_2 [H, 32], sharded by heads.
        outer_bias: b_2 [H], sharded by heads.
        log_scale: c [1], on all ranks.
        threshold: t [1], on all ranks.
    """

    def __init__(self, num_heads: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.pair_multiply_adds = WIDTH + WIDTH * num_heads
        self.inner_weight = parameter((WIDTH, 1), tensor_axis, role="vector")
        self.inner_bias = parameter((WIDTH,), tensor_axis, init=0.0)
        self.outer_weight = parameter((num_heads, WIDTH), tensor_axis, 0, role="position")
        self.outer_bias = parameter((num_heads,), tensor_axis, 0, init=0.0)
        self.log_scale = parameter((1,), tensor_axis, init=0.1)
        self.threshold = parameter((1,), tensor_axis, init=1.0)

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        """Return the weights of FireScores that follow the positions."""
        outer_weight = self.local_heads(self.outer_weight)
        outer_bias = self.local_heads(self.outer_bias)
        weights = (self.inner_weight, self.inner_bias, outer_weight, outer_bias, self.log_scale, self.threshold)
        return tuple(weight.float() for weight in weights)

    def scores(self, weights: tuple[Tensor, ...], state: Tensor | None, past: int) -> ScoreBias:
        assert state is not None
        return FireScores(state, *weights, past=past)


class Fire(Encoding):
    """Functional interpolation of distances. The state is the position ids in float32, exact up to 2^24."""

    equation = "score(i, j) = q_i . k_j / sqrt R + f_h( log(|c (i - j)| + 1) / (log(|c max(i, |t| 512)| + 1) + 1e-6) )"
    score_bias = "pair"

    def state(self, position_ids: Tensor) -> Tensor:
        return position_state(position_ids)

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return FireBias(self.config.num_heads, tensor_axis)
