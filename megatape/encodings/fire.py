"""FIRE (Li et al., arXiv 2310.04418): the bias is a learned function of the distance relative to the query's position.

    b_h(i, j) = f_h( log(|c (i - j)| + 1) / (log(|c max(i, |t| 512)| + 1) + 1e-6) )

f is a network with one hidden layer of 32 ReLU units; c and t are learned. As in the TAPE authors' code, every
layer has its own function, the initial threshold is 512 whatever the training length, and positions start at 0
in training and evaluation. There is no random offset, because the bias depends on absolute positions.
"""

import torch
from torch import Tensor

from megatape.attention.bias import ScoreBias
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias
from megatape.nn.parameters import parameter

WIDTH = 32
THRESHOLD = 512.0
EPS = 1e-6


class FireScores(ScoreBias):
    """The bias of queries at `position_ids` and of all keys.

    Attributes:
        position_ids: Positions of the queries' tokens, float32 [B or 1, N].
        past: Number of keys before those of the queries' tokens.
    """

    def __init__(self, position_ids: Tensor, weights: tuple[Tensor, ...], past: int = 0) -> None:
        self.position_ids = position_ids
        self.weights = weights
        self.past = past

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        inner_weight, inner_bias, outer_weight, outer_bias, log_scale, threshold = weights
        queries = self.position_ids[:, rows.start - self.past : rows.stop - self.past, None]
        index = torch.arange(max(rows.stop, columns.stop), dtype=queries.dtype, device=queries.device)
        largest = torch.log1p((log_scale * torch.maximum(queries, (threshold * THRESHOLD).abs())).abs())
        distances = index[rows, None] - index[columns]  # as between positions, which documents count alone
        share = torch.log1p((log_scale * distances).abs()) / (largest + EPS)  # [B, rows, columns]
        # Units and heads come before the pairs: rows are long then, and the result has the layout of the scores.
        hidden = torch.addmm(inner_bias[:, None], inner_weight, share.view(1, -1)).relu_()  # [32, pairs]
        return torch.addmm(outer_bias[:, None], outer_weight, hidden).unflatten(1, share.shape).transpose(0, 1)


class FireBias(LayerBias):
    """The parameters of one layer.

    The hidden layer, c (`log_scale`) and t (`threshold`) are on all ranks, the output layer is divided by heads.
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
        hidden = (self.inner_weight, self.inner_bias)
        outer = map(self.local_heads, (self.outer_weight, self.outer_bias))
        return tuple(weight.float() for weight in (*hidden, *outer, self.log_scale, self.threshold))

    def scores(self, weights: tuple[Tensor, ...], state: Tensor | None, past: int) -> ScoreBias:
        assert state is not None
        return FireScores(state, weights, past)


class Fire(Encoding):
    """The state is constant: the positions in float32 (exact up to 2^24).

        score(i, j) = q_i . k_j / sqrt R + f_h(log(|c (i - j)| + 1) / log(|c max(i, 512 |t|)| + 1))

    It has one row if that is how the positions are in memory, because all samples have the same. Comparing their values would
    wait for the device.
    """

    score_bias = "pair"

    def state(self, position_ids: Tensor) -> Tensor:
        return (position_ids[:1] if position_ids.stride(0) == 0 else position_ids).float()

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return FireBias(self.config.num_heads, tensor_axis)
