"""Scores of a tile of queries and keys, and the keys that a block of queries sees: for all attention kernels.

Scores are multiplied by log2(e), so exponentials are powers of two. Shapes as in model/transformer.py.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# Precision of float32 products: three TF32 products in tensor cores, as exact as one in float32.
PRECISION = tl.constexpr("tf32x3")


@triton.jit
def key_range(seen, end, whole, whole_end, MASKED: tl.constexpr):
    """Return one of the two loops over the keys that some queries of a block see: over those that all see, or over the rest.

    keys_kernel calls it with queries in place of keys, and keys in place of queries.

    seen, end: Bounds of the keys that some queries see.
    whole, whole_end: Bounds of the keys that all queries see, which need no mask. They lie between the others.
    MASKED: Whether to return the loop over the rest. It counts past the keys in the middle as if they did not exist.

    Returns:
        begin, end: Bounds of the loop's counter.
        gap: Count from which on the keys come after those in the middle.
        skipped: Number of keys in the middle. From `gap` on, the loop's key is its counter plus `skipped`.
    """
    if MASKED:
        skipped = whole_end - whole
        return seen, end - skipped, whole, skipped
    else:
        return whole, whole_end, whole_end, 0


@triton.jit
def seen_keys(
    starts,
    batch,
    first,
    rows,
    length,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Return the bounds of the keys that some and that all queries of a block see, in multiples of KEYS.

    Returns:
        seen: Key from which on some queries see the keys.
        whole: Key from which on all queries see the keys.
        diagonal: Key from which on only some see them again, because the keys may come later than a query.
        row_starts: First key that each query sees, [QUERIES].
    """
    diagonal = first // KEYS * KEYS
    if starts is None:
        return 0, 0, diagonal, rows
    else:
        pointers = starts + batch.to(tl.int64) * length + rows
        row_starts = tl.load(pointers, mask=rows < length, other=0).to(tl.int32)
        earliest = tl.min(tl.where(rows < length, row_starts, first), 0)
        latest = tl.max(row_starts, 0)
        return earliest // KEYS * KEYS, tl.minimum(tl.cdiv(latest, KEYS) * KEYS, diagonal), diagonal, row_starts


@triton.jit
def visible(tokens, rows, row_starts, starts):
    """Return a mask [rows, tokens]: whether each query sees a key."""
    seen = tokens[None, :] <= rows[:, None]
    if starts is not None:
        seen &= tokens[None, :] >= row_starts[:, None]
    return seen


@triton.jit
def scores_tile(
    x,
    y,
    rows,
    tokens,
    bias,
    decay,
    batch,
    head,
    length,
    heads,
    scale,
):
    """Return the scores of a tile, times log2(e), with their biases and without a mask.

    x, y: Queries and keys, or keys and queries for a transposed tile: [X, WIDTH] and [Y, WIDTH] give [X, Y].
    rows, tokens: Indices of the queries and keys, which broadcast to the tile.
    bias, decay: See add_bias and add_decay.
    """
    scores = tl.dot(x, tl.trans(y), input_precision=PRECISION) * (scale * LOG2_E)
    scores = add_bias(scores, bias, head, rows, tokens, length)
    return add_decay(scores, decay, batch, head, rows, tokens, length, heads)


@triton.jit
def add_bias(scores, bias, head, rows, tokens, length):
    """Add a bias by distance to a tile of scores.

    If a key comes after its query, or one of them does not exist, any number will do: it is read from an end of the head's.

    scores: Scores times log2(e).
    bias: Numbers by distance times log2(e), float32 [H, N], or None.
    rows, tokens: Queries and keys, which broadcast to the tile.
    """
    if bias is None:
        return scores
    else:
        distance = tl.minimum(tl.maximum(rows - tokens, 0), length - 1)
        return scores + tl.load(bias + head.to(tl.int64) * length + distance)


@triton.jit
def add_decay(scores, decay, batch, head, rows, tokens, length, heads):
    """Add the bias c_i - c_j to a tile of scores of queries i and keys j.

    Each c is the sum of two float32 numbers, because neighboring sums are large compared with their difference. As in add_bias,
    any number will do for pairs without a score.

    scores: Scores times log2(e).
    decay: c times log2(e) of each token, float32 [2, B, H, N], or None. The first half is c rounded to float32, the second half
        the rounding error.
    rows, tokens: Queries and keys, which broadcast to the tile.
    """
    if decay is None:
        return scores
    else:
        rounded = decay + (batch.to(tl.int64) * heads + head) * length
        error = rounded + tl.num_programs(2).to(tl.int64) * heads * length
        row = tl.minimum(rows, length - 1)
        token = tl.minimum(tokens, length - 1)
        difference = tl.load(rounded + row) - tl.load(rounded + token)
        return scores + (difference + (tl.load(error + row) - tl.load(error + token)))
