"""GRAPE-AP, path-integral additive GRAPE (Zhang et al., arXiv 2512.07805): a bias summed along the way from key to query.

    score(i, j) = q_i . k_j / sqrt R + b_h(i, j)
    b_h(i, j) = slope_h sum over l = j + 1 .. i of log sigmoid(p_i . R(l) norm(p_l) / 8)
    p = W_p h,    8 channels for each head

R(l) turns all planes of p by l radians, slope_h is ALiBi's, and norm divides by the root mean square. So each token on the way
lowers the score, by how much depends on the query as well. In FoX it depends on that token alone, in ALiBi on nothing.

Sizes, slopes and the base of the rotation, 1, are those of the authors' code. It rotates p_l by its position and p_i not at
all, so scores depend on absolute positions. Training adds no random offset.

Shapes as in model/transformer.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import rotate
from megatape.distributed.mesh import Axis
from megatape.encodings.alibi import slopes
from megatape.encodings.encoding import Encoding, Features, LayerBias, TokenFeatures
from megatape.encodings.fire import position_state
from megatape.encodings.rope import rotary_state
from megatape.nn.linear import ColumnLinear

# Channels of p for each head.
SIZE = 8
# With this base, all planes turn by one radian per token.
BASE = 1.0


class PathFeatures(TokenFeatures):
    """p, float32 [B, N, H/T, 8].

    Attributes:
        projection: W_p, [8 H, D], sharded by heads.
    """

    def __init__(self, hidden_size: int, num_heads: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.multiply_adds = hidden_size * num_heads * SIZE
        self.projection = ColumnLinear(hidden_size, num_heads * SIZE, tensor_axis, role="position")

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        return (self.projection(h).float().unflatten(-1, (-1, SIZE)),)


class PathIntegral(ScoreBias):
    """b_h(i, j).

    Attributes:
        weights: The following tensors, float32.
            queries: p of the queries' tokens, turned back by the difference between index and position, [B, N, H/T, 8].
            keys: Normalized p of all tokens, turned by their indices, [B, K, H/T, 8].
            slopes: Slopes of this rank's heads, [H/T].
    """

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """Compute a block of the bias, [B, H/T, rows, columns]. A sum starts after its key and ends at its query."""
        queries, keys, head_slopes = weights
        past = keys.shape[1] - queries.shape[1]
        queries = queries[:, rows.start - past : rows.stop - past].transpose(1, 2)  # [B, H/T, rows, 8]
        keys = keys[:, columns].transpose(1, 2)  # [B, H/T, columns, 8]
        steps = head_slopes[:, None, None] * F.logsigmoid(queries @ keys.mT / SIZE)
        steps = steps.tril(rows.start - columns.start)  # [B, H/T, rows, columns]
        from_key = steps.flip(-1).cumsum(-1).flip(-1)
        return from_key - steps


class PathIntegralBias(LayerBias):
    """Bias summed from key to query. No parameters."""

    form = PathIntegral

    def __init__(self, num_heads: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.tensor_axis = tensor_axis
        self.pair_multiply_adds = num_heads * SIZE

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        """Return the weights of PathIntegral. Queries are not turned yet, since their positions are in the state."""
        (p,) = features  # [B, K, H/T, 8]
        past = k.shape[1] - q.shape[1]
        all_slopes = slopes(self.num_heads, q.device)
        rank_slopes = all_slopes.chunk(self.tensor_axis.size)[self.tensor_axis.rank]  # [H/T]
        index = torch.arange(p.shape[1], device=p.device)[None]  # [1, K]
        keys = rotate(F.rms_norm(p, (SIZE,)), rotary_state(index, SIZE, BASE))
        return p[:, past:], keys, self.local_heads(rank_slopes).float()

    def scores(self, weights: tuple[Tensor, ...], state: Tensor | None, past: int) -> ScoreBias:
        assert state is not None
        queries, keys, head_slopes = weights
        # Positions restart in each document, and padding has none. Within a document, they differ from indices by a constant.
        index = torch.arange(past, past + queries.shape[1], device=queries.device)
        turned = rotate(queries, rotary_state(index - state, SIZE, BASE))
        return self.form(turned, keys, head_slopes)


class GrapeAP(Encoding):
    """Path-integral additive bias. The state is the position ids in float32, exact up to 2^24."""

    equation = """
        score(i, j) = q_i . k_j / sqrt R + slope_h sum over l = j + 1 .. i of log sigmoid(p_i . R(l) norm(p_l) / 8)
        p = W_p h
    """
    score_bias = "pair"

    def state(self, position_ids: Tensor) -> Tensor:
        return position_state(position_ids)

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        return PathFeatures(self.config.hidden_size, self.config.num_heads, tensor_axis)

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return PathIntegralBias(self.config.num_heads, tensor_axis)
