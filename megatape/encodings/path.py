"""PaTH (Yang et al., arXiv 2505.16381): between a key and a query lie the reflections of the tokens after the key.

    score(i, j) = q_i^T H_i H_(i-1) ... H_(j+1) k_j / sqrt R,    H_t = I - beta_t w_t w_t^T
    w = the unit vector of SiLU(convolution of width 3 of W_up W_down h),    beta = 2 sigmoid(U h + b)

Each key/value head has its own w and beta.

The product of the reflections of a chunk of tokens is I - w^T u with u = T (beta w), T = (I + tril(beta w w^T, -1))^-1 (the UT
transform, section 3.2): a query meets one chunk of keys after the other, from its own back to the first, and passes through the
reflections of each.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias, SequenceFeatures, TokenFeatures, causal_convolution
from megatape.nn.linear import ColumnLinear
from megatape.nn.parameters import Uniform, parameter
from megatape.nn.remat import linear

RANK = 32
WIDTH = 3
CHUNK = 64  # tokens whose reflections are multiplied at once; the blocks of attention are multiples of it


class Reflections(TokenFeatures):
    """W_up W_down h [B, N, L/T, R] and beta [B, N, L/T, 1], float32.

    down: [32, D], on all ranks; up: [L R, 32], divided by heads.
    """

    def __init__(self, hidden_size: int, num_channels: int, head_dim: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.multiply_adds = RANK * (hidden_size + num_channels * head_dim) + hidden_size * num_channels
        self.down = parameter((RANK, hidden_size), tensor_axis, role="position")
        self.up = parameter((num_channels * head_dim, RANK), tensor_axis, 0, role="position")
        self.strength = ColumnLinear(hidden_size, num_channels, tensor_axis, bias=True, role="position")

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        direction = F.linear(linear(h, self.down, None), self.up).unflatten(-1, (-1, self.head_dim))
        return direction.float(), 2 * torch.sigmoid(self.strength(h).float())[..., None]


class Directions(SequenceFeatures):
    """w [B, N, L/T, R] and beta; the carry is what the convolution reads of the last tokens.

    weight: of the convolution, [L R, 3], divided by heads.
    """

    def __init__(self, num_channels: int, head_dim: int, tensor_axis: Axis) -> None:
        super().__init__()
        shape = (num_channels * head_dim, WIDTH)
        self.weight = parameter(shape, tensor_axis, 0, init=Uniform(WIDTH**-0.5), role="vector")

    def forward(self, features: Features, document_starts: DocumentStarts, carry: Features) -> tuple[Features, Features]:
        direction, beta = features
        kernels = self.local_heads(self.weight).float().unflatten(0, (direction.shape[2], -1))
        mixed, inputs = causal_convolution(direction, kernels, document_starts, carry)
        return (F.normalize(F.silu(mixed), dim=-1), beta), (inputs,)


class PathScores(ScoreBias):
    """What the reflections add to q . k / sqrt R.

    weights: scaled queries [B, L, H/L, N, R]; then of each of n chunks of C tokens, of which the last is padded with zeros, the
    keys, w, u, and the keys that have passed the later reflections of their chunk, [B, L, n, C, R] each; and
    T tril(beta w k^T, -1), what keys lose within their chunk, [B, L, n, C, C]; then the keys in a cache, if there are any,
    [B, L, K - N, R], which have passed all reflections in it.
    """

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """Block of the bias, [B, H, rows, columns]; `columns` begin at the first key."""
        queries, keys, w, u, moved, lost, *cached = weights
        size = keys.shape[3]
        past = sum(part.shape[2] for part in cached)
        start = rows.start - past
        stop = rows.stop - past
        assert columns.start == 0 and start % size == 0
        parts = [part.unbind(2) for part in (keys, w, u, moved, lost)]
        blocks = []
        for first in range(start, stop, size):
            own = queries[..., first : min(first + size, stop), :]
            found = self._of_chunk(own, parts, first // size, cached)
            blocks.append(F.pad(found, (0, max(columns.stop - found.shape[-1], 0)))[..., : columns.stop])
        return torch.cat(blocks, dim=-2).flatten(1, 2)

    def _of_chunk(self, own: Tensor, parts: list[tuple[Tensor, ...]], number: int, cached: list[Tensor]) -> Tensor:
        """The bias of queries [B, L, H/L, c, R] of a chunk and of the keys up to the end of the chunk."""
        keys, w, u, moved, lost = ([chunk[:, :, None] for chunk in part] for part in parts)
        passed = (own @ w[number].mT).tril()
        found = [-passed @ lost[number]]
        query = own - passed @ u[number]
        for earlier in reversed(range(number)):
            found.append(query @ moved[earlier].mT - own @ keys[earlier].mT)
            query = query - (query @ w[earlier].mT) @ u[earlier]
        found += [(query - own) @ keys[:, :, None].mT for keys in cached]
        return torch.cat(found[::-1], dim=-1)


class PathBias(LayerBias):
    """The reflections. No parameters."""

    form = PathScores
    num_transient = 2
    rewrites_keys = True

    def __init__(self, num_heads: int, num_channels: int, head_dim: int) -> None:
        super().__init__()
        self.pair_multiply_adds = 2 * num_heads * head_dim
        of_queries = CHUNK * num_heads * CHUNK
        of_keys = 3 * CHUNK * num_channels * head_dim
        self.multiply_adds = of_queries + of_keys

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        w, beta = features
        size = min(CHUNK, q.shape[1])
        past = k.shape[1] - q.shape[1]
        queries = (q.float() * q.shape[-1] ** -0.5).unflatten(2, (k.shape[2], -1)).permute(0, 2, 3, 1, 4)
        keys, w, strong = (_chunks(x, size) for x in (k[:, past:].float(), w, beta * w))
        both = torch.cat([strong, (strong @ keys.mT).tril(-1)], dim=-1)
        solved = torch.linalg.solve_triangular((strong @ w.mT).tril(-1), both, upper=False, unitriangular=True)
        u, lost = solved.split((w.shape[-1], size), dim=-1)
        cached = (k[:, :past].float().transpose(1, 2),) if past else ()
        return queries, keys, w, u, keys - lost.mT @ w, lost, *cached

    def later_keys(self, weights: tuple[Tensor, ...]) -> Tensor:
        _, _, w, u, moved, _, *cached = weights
        for directions, updates, keys in zip(*(part.unbind(2) for part in (w, u, moved)), strict=True):
            cached = [*(before - (before @ updates.mT) @ directions for before in cached), keys]
            cached = [torch.cat(cached, dim=2)]
        return cached[0]


def _chunks(x: Tensor, size: int) -> Tensor:
    """[B, N, L, R] -> [B, L, n, size, R]."""
    return F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % size)).transpose(1, 2).unflatten(2, (-1, size))


class Path(Encoding):
    """Products of reflections.

    score(i, j) = q_i^T H_i H_(i-1) ... H_(j+1) k_j / sqrt R
    H_t = I - beta_t w_t w_t^T,  beta = 2 sigmoid(U h + b)
    w = the unit vector of SiLU(convolution of width 3 of W_up W_down h)
    """

    score_bias = "pair"

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        return Reflections(self.config.hidden_size, self.config.num_kv_heads, self.config.head_dim, tensor_axis)

    def sequence_features(self, tensor_axis: Axis) -> SequenceFeatures:
        return Directions(self.config.num_kv_heads, self.config.head_dim, tensor_axis)

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return PathBias(self.config.num_heads, self.config.num_kv_heads, self.config.head_dim)
