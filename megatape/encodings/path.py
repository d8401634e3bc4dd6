"""PaTH (Yang et al., arXiv 2505.16381): on its way to the query, a key is transformed by every token after it.

    score(i, j) = q_i^T H_i H_(i-1) ... H_(j+1) k_j / sqrt R
    H_t = I - beta_t w_t w_t^T,    beta = 2 sigmoid(U h + b)
    w = unit vector of SiLU(convolution of width 3 of W_up W_down h)

H_t is a Householder-like matrix. It reflects at beta = 2, so it is called a reflection here. Each key/value head has its own w
and beta.

Multiplying matrices token by token would be slow, so tokens are processed in chunks (the UT transform, section 3.2). In a chunk
of C tokens, stack w and beta w as rows of matrices [C, R]. The product of all its reflections is I - w^T u, with

    u = T (beta w),    T = (I + tril(beta w w^T, -1))^-1

A query starts in its own chunk. Going back chunk by chunk, it is scored with the chunk's keys, and then multiplied by the
chunk's reflections.

Shapes as in model/transformer.py. There are n chunks of C tokens, the last one padded with zeros.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.distributed.mesh import Axis
from megatape.encodings.convolution import ConvolvedFeatures, LowRankFeatures
from megatape.encodings.encoding import Encoding, Features, LayerBias, SequenceFeatures, TokenFeatures
from megatape.nn.linear import ColumnLinear

# Number C of tokens in a chunk. Blocks of attention are multiples of it.
CHUNK = 64


class Reflections(LowRankFeatures):
    """W_up W_down h [B, N, L/T, R] and beta [B, N, L/T, 1], float32.

    Attributes:
        strength: U [L, D] and b [L], sharded by heads.
    """

    def __init__(self, hidden_size: int, num_channels: int, head_dim: int, tensor_axis: Axis) -> None:
        super().__init__(hidden_size, num_channels, head_dim, tensor_axis)
        self.multiply_adds += hidden_size * num_channels
        self.strength = ColumnLinear(hidden_size, num_channels, tensor_axis, bias=True, role="position")

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        (direction,) = super().forward(h, q, k)
        beta = 2 * torch.sigmoid(self.strength(h).float())[..., None]
        return direction, beta


class Directions(ConvolvedFeatures):
    """w [B, N, L/T, R] and beta. The carry has the last tokens' inputs of the convolution."""

    def forward(
        self,
        features: Features,
        document_starts: DocumentStarts,
        carry: Features,
    ) -> tuple[Features, Features]:
        direction, beta = features
        (mixed,), inputs = super().forward((direction,), document_starts, carry)
        w = F.normalize(mixed, dim=-1)
        return (w, beta), inputs


class Chunk(NamedTuple):
    """Tensors of one chunk of tokens, see PathScores: [B, L, 1, C, R], `lost` [B, L, 1, C, C]."""

    keys: Tensor
    w: Tensor
    u: Tensor
    moved: Tensor
    lost: Tensor


class PathScores(ScoreBias):
    """Difference between PaTH's score and q . k / sqrt R, which attention computes itself.

    Attributes:
        weights: The following tensors.
            queries: Queries / sqrt R, [B, L, H/L, N, R].
            keys: Keys of each chunk, [B, L, n, C, R].
            w: w of each chunk, [B, L, n, C, R].
            u: T (beta w) of each chunk, [B, L, n, C, R].
            moved: Keys after all later reflections in their chunk, [B, L, n, C, R].
            lost: T tril(beta w k^T, -1) of each chunk, [B, L, n, C, C]: moved = keys - lost^T w.
            cached: Cached keys after all reflections up to the last cached token, [B, L, K - N, R]. Absent without a cache.
    """

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """Compute a block of the bias, [B, H, rows, columns]. `rows` start at the start of a chunk."""
        queries, keys, w, u, moved, lost, *cached = weights
        chunk_size = keys.shape[3]
        past = sum(part.shape[2] for part in cached)
        start = rows.start - past
        stop = rows.stop - past
        assert start % chunk_size == 0
        # Chunks before that of the first key have no part in the bias.
        num_skipped = max(columns.start - past, 0) // chunk_size
        first_key = 0
        if num_skipped:
            cached = []
            first_key = past + num_skipped * chunk_size
        by_chunk = [tensor[:, :, None].unbind(3) for tensor in (keys, w, u, moved, lost)]
        chunks = [Chunk(*tensors) for tensors in zip(*by_chunk, strict=True)]
        blocks = []
        for first in range(start, stop, chunk_size):
            chunk_queries = queries[..., first : min(first + chunk_size, stop), :]
            number = first // chunk_size
            chunk_bias = self._of_chunk(chunk_queries, chunks[number], chunks[num_skipped:number], cached)
            # Later keys are masked, so their bias does not matter.
            num_later = max(columns.stop - first_key - chunk_bias.shape[-1], 0)
            padded = F.pad(chunk_bias, (0, num_later))
            blocks.append(padded[..., columns.start - first_key : columns.stop - first_key])
        return torch.cat(blocks, dim=-2).flatten(1, 2)

    def _of_chunk(
        self,
        original: Tensor,
        chunk: Chunk,
        earlier_chunks: list[Chunk],
        cached: list[Tensor],
    ) -> Tensor:
        """Compute the bias of one chunk's queries, for all keys up to the end of the chunk.

        Args:
            original: Queries of the chunk, [B, L, H/L, c, R].
            chunk: The chunk.
            earlier_chunks: Chunks before it, in order.
            cached: Cached keys, if there is a cache.

        Returns:
            Bias [B, L, H/L, c, keys].
        """
        # Keys of the same chunk. Afterwards `query` has passed the reflections of its chunk, up to its own token.
        reflected = (original @ chunk.w.mT).tril()
        blocks = [-reflected @ chunk.lost]
        query = original - reflected @ chunk.u

        # Keys of earlier chunks. `query` has passed the reflections of all chunks after them.
        for earlier in reversed(earlier_chunks):
            blocks.append(query @ earlier.moved.mT - original @ earlier.keys.mT)
            query = query - (query @ earlier.w.mT) @ earlier.u

        for cached_keys in cached:
            blocks.append((query - original) @ cached_keys[:, :, None].mT)
        blocks.reverse()
        return torch.cat(blocks, dim=-1)


class PathBias(LayerBias):
    """Bias by reflections. No parameters."""

    form = PathScores
    num_transient = 2
    rewrites_keys = True

    def __init__(self, num_heads: int, num_channels: int, head_dim: int) -> None:
        super().__init__()
        self.pair_multiply_adds = 2 * num_heads * head_dim
        query_products = CHUNK * num_heads * CHUNK
        key_products = 3 * CHUNK * num_channels * head_dim
        self.multiply_adds = query_products + key_products

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        """Compute the weights of PathScores, see there."""
        w, beta = features
        head_dim = q.shape[-1]
        num_channels = k.shape[2]
        chunk_size = min(CHUNK, q.shape[1])
        past = k.shape[1] - q.shape[1]
        scaled_q = q.float() * head_dim**-0.5
        queries = scaled_q.unflatten(2, (num_channels, -1)).permute(0, 2, 3, 1, 4)  # [B, L, H/L, N, R]
        beta_w = beta * w
        keys = _chunks(k[:, past:].float(), chunk_size)  # [B, L, n, C, R]
        w = _chunks(w, chunk_size)  # [B, L, n, C, R]
        beta_w = _chunks(beta_w, chunk_size)  # [B, L, n, C, R]

        # u = T (beta w) and lost = T tril(beta w k^T, -1), with T = (I + tril(beta w w^T, -1))^-1
        right_sides = torch.cat([beta_w, (beta_w @ keys.mT).tril(-1)], dim=-1)  # [B, L, n, C, R + C]
        triangle = (beta_w @ w.mT).tril(-1)  # [B, L, n, C, C]
        solved = torch.linalg.solve_triangular(triangle, right_sides, upper=False, unitriangular=True)
        u, lost = solved.split((head_dim, chunk_size), dim=-1)
        moved = keys - lost.mT @ w

        weights = (queries, keys, w, u, moved, lost)
        if not past:
            return weights
        cached = k[:, :past].float().transpose(1, 2)
        return *weights, cached

    def later_keys(self, weights: tuple[Tensor, ...]) -> Tensor:
        _, _, w, u, moved, _, *cached = weights
        for chunk_w, chunk_u, chunk_keys in zip(w.unbind(2), u.unbind(2), moved.unbind(2), strict=True):
            # Earlier keys are multiplied by the reflections of this chunk.
            reflected = [keys - (keys @ chunk_u.mT) @ chunk_w for keys in cached]
            cached = [torch.cat([*reflected, chunk_keys], dim=2)]
        return cached[0]


def _chunks(x: Tensor, size: int) -> Tensor:
    """Split tokens into chunks, [B, N, L, R] -> [B, L, n, size, R]. The last chunk is padded with zeros."""
    num_missing = -x.shape[1] % size
    padded = F.pad(x, (0, 0, 0, 0, 0, num_missing))
    return padded.transpose(1, 2).unflatten(2, (-1, size))


class Path(Encoding):
    """Products of reflections."""

    equation = """
        score(i, j) = q_i^T H_i H_(i-1) ... H_(j+1) k_j / sqrt R
        H_t = I - beta_t w_t w_t^T,  beta = 2 sigmoid(U h + b)
        w = unit vector of SiLU(convolution of width 3 of W_up W_down h)
    """
    score_bias = "pair"

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        return Reflections(
            self.config.hidden_size,
            self.config.num_kv_heads,
            self.config.head_dim,
            tensor_axis,
        )

    def sequence_features(self, tensor_axis: Axis) -> SequenceFeatures:
        return Directions(self.config.num_kv_heads, self.config.head_dim, tensor_axis)

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return PathBias(self.config.num_heads, self.config.num_kv_heads, self.config.head_dim)
