"""Gradient of a bias by distance: dS of backward.py, summed over all pairs of a distance.

Tiles along a diagonal have each distance in the same place. So a program walking down a diagonal adds up whole tiles, and only
their sum by distance. This needs neither N x N memory nor atomic additions. Shapes as in forward.py.
"""

import triton
import triton.language as tl

from megatape.attention.kernels.scores import PRECISION, scores_tile, visible
from megatape.attention.kernels.tiles import head_columns, load


@triton.jit
def distances_kernel(
    # Inputs
    rotated_q,
    rotated_k,
    v,
    bias,
    starts,
    log_sum,
    row_sum,
    d_content,
    # Output
    parts,
    # Sizes
    length,
    heads,
    scale,
    # Compile-time sizes
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Compute the bias gradient in two parts, because each distance is in two diagonals of tiles.

    Each program computes one diagonal of one head and sample: square tiles program_id(0) tiles below the main diagonal.
    Programs with the longest diagonals come first.

    rotated_q, rotated_k: Queries and keys, rotated if there is a state.
    bias, row_sum: As in the backward pass.
    parts: Float32 [2, B, H, N], initially zero. The gradient is the sum over the first two dimensions.
    """
    diagonal = tl.program_id(0) * KEYS
    head = tl.program_id(1)
    batch = tl.program_id(2)
    line = (batch.to(tl.int64) * heads + head) * length
    total = tl.zeros((QUERIES, KEYS), tl.float32)
    for start in range(0, length - diagonal, KEYS):
        if starts is None:
            hidden = False
        else:
            # Later queries of a block see no earlier keys than its first query.
            hidden = tl.load(starts + (batch.to(tl.int64) * length + diagonal + start)) >= start + KEYS
        if not hidden:
            total += _d_scores(
                rotated_q,
                rotated_k,
                v,
                bias,
                starts,
                log_sum,
                row_sum,
                d_content,
                batch,
                head,
                diagonal + start,
                start,
                length,
                heads,
                scale,
                GROUP,
                SIZE,
                WIDTH,
                QUERIES,
                KEYS,
            )

    # Distances are diagonal .. diagonal + KEYS - 1, and as many before. Every row has each of them once, in one half or the
    # other.
    rows = tl.arange(0, QUERIES)[:, None]
    distances = tl.arange(0, KEYS)[None, :]
    by_distance = tl.gather(total, (rows - distances) & (KEYS - 1), 1)
    farther = tl.sum(tl.where(rows >= distances, by_distance, 0.0), 0)
    nearer = tl.sum(tl.where(rows < distances, by_distance, 0.0), 0)
    distance = diagonal + tl.arange(0, KEYS)
    tl.store(parts + (line + distance), farther, mask=distance < length)
    parts += tl.num_programs(2).to(tl.int64) * heads * length
    tl.store(parts + (line + distance - KEYS), nearer, mask=distance >= KEYS)


@triton.jit
def _d_scores(
    # Inputs
    rotated_q,
    rotated_k,
    v,
    bias,
    starts,
    log_sum,
    row_sum,
    d_content,
    # Tile
    batch,
    head,
    first,
    start,
    # Sizes
    length,
    heads,
    scale,
    # Compile-time sizes
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Compute dS for queries from `first` on and keys from `start` on, [QUERIES, KEYS]. Missing pairs are zero."""
    channel = head // GROUP
    channels = heads // GROUP
    columns = head_columns(SIZE, WIDTH)
    rows = first + tl.arange(0, QUERIES)
    tokens = start + tl.arange(0, KEYS)
    line = (batch.to(tl.int64) * heads + head) * length + rows
    # Infinite for missing queries, so that their weights are zero.
    log_sums = tl.load(log_sum + line, mask=rows < length, other=float("inf"))
    row_sums = tl.load(row_sum + line, mask=rows < length, other=0.0)
    if starts is None:
        row_starts = rows
    else:
        pointers = starts + batch.to(tl.int64) * length + rows
        row_starts = tl.load(pointers, mask=rows < length, other=0).to(tl.int32)

    # A, [QUERIES, KEYS]
    queries = load(rotated_q, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
    keys = load(rotated_k, batch, start, channel, length, channels, columns, KEYS, SIZE, True)
    scores = scores_tile(queries, keys, rows[:, None], tokens[None, :], bias, None, batch, head, length, heads, scale)
    weights = tl.exp2(scores - log_sums[:, None])
    weights = tl.where(visible(tokens, rows, row_starts, starts), weights, 0.0)

    # dA = dO v^T, [QUERIES, KEYS]
    d_contents = load(d_content, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
    values = load(v, batch, start, channel, length, channels, columns, KEYS, SIZE, True)
    d_weights = tl.dot(d_contents, tl.trans(values), input_precision=PRECISION)
    return weights * (d_weights - row_sums[:, None])
