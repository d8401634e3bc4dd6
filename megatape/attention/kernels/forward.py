"""Causal attention over one or two values with the same weights, by blocks of keys (FlashAttention, arXiv 2205.14135).

Shapes as in model/transformer.py; SIZE is R, GROUP the query heads of a key/value head. Scores are kept times log2(e).
"""

import triton
import triton.language as tl

from megatape.attention.kernels.tiles import head_columns, joined, load, load_halves, load_state, rotate, store

LOG2_E = tl.constexpr(1.4426950408889634)
PRECISION = tl.constexpr("tf32x3")  # of products of float32: three of TF32, in tensor cores, as exact as one of float32
HIDDEN = tl.constexpr(-1e30)  # the score of what a token may not see; finite, as a row may see nothing of its first block


@triton.jit
def forward_kernel(
    q, k, v, e, initial, delta, bias, starts, content, position, log_sum, length, heads, scale,
    GROUP: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """content = A v, position = A e and log_sum, the logarithms of the sums of exponentials, to base 2.

    q, content, position: [B, N, H, R]; k, v: [B, N, L, R], k rotated; log_sum: [B, H, N], float32. e: [B, N, L, R] in the dtype
    of v, or [B, N, 1, R] if delta is None; without it, A v alone. q is rotated here by initial + delta, as tiles.load_state has
    them, and without initial stays as it is. bias: what `biased` adds to the scores. starts: [B, N] or None, the first token
    that each token may see. Program: QUERIES queries of a head of a sample; those that see the most come first.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    batch = tl.program_id(2)
    channel = head // GROUP
    channels = heads // GROUP
    e_channel, e_channels = state_channel(delta, channel, channels)
    first = block * QUERIES
    rows = first + tl.arange(0, QUERIES)
    columns = head_columns(SIZE, WIDTH)
    if initial is None:
        queries = load(q, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
    else:
        x1, x2 = load_halves(q, batch, first, head, length, heads, QUERIES, SIZE, WIDTH)
        cosines, sines = load_state(initial, delta, batch, first, channel, length, channels, QUERIES, SIZE, WIDTH)
        x1, x2 = rotate(x1, x2, cosines, sines)
        queries = joined(x1, x2, QUERIES, WIDTH).to(q.dtype.element_ty)
    seen, whole, diagonal, row_starts = seen_keys(starts, batch, first, rows, length, QUERIES, KEYS)

    of_content = tl.zeros((QUERIES, WIDTH), tl.float32)
    of_position = tl.zeros((QUERIES, WIDTH), tl.float32)
    largest = tl.full((QUERIES,), HIDDEN, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    for masked in tl.static_range(2):  # first the keys that all of the queries see, then those around them
        if masked:
            begin = seen
            end = tl.minimum(first + QUERIES, length) - (diagonal - whole)
            gap = whole
            skipped = diagonal - whole
        else:
            begin = whole
            end = diagonal
            gap = diagonal
            skipped = 0
        for step in range(begin, end, KEYS):
            start = step + tl.where(step >= gap, skipped, 0)
            keys = load(k, batch, start, channel, length, channels, columns, KEYS, SIZE, masked)
            scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2_E)
            tokens = start + tl.arange(0, KEYS)
            scores = biased(scores, bias, head, rows[:, None], tokens[None, :], length)
            if masked:
                scores = tl.where(visible(tokens, rows, row_starts, starts), scores, HIDDEN)
            highest = tl.maximum(largest, tl.max(scores, 1))
            weights = tl.exp2(scores - highest[:, None])
            fade = tl.exp2(largest - highest)
            total = total * fade + tl.sum(weights, 1)
            largest = highest
            weights = weights.to(v.dtype.element_ty)
            values = load(v, batch, start, channel, length, channels, columns, KEYS, SIZE, masked)
            of_content = tl.dot(weights, values, of_content * fade[:, None], input_precision=PRECISION)
            if e is not None:
                states = load(e, batch, start, e_channel, length, e_channels, columns, KEYS, SIZE, masked)
                of_position = tl.dot(weights, states, of_position * fade[:, None], input_precision=PRECISION)

    store(content, of_content / total[:, None], batch, first, head, length, heads, columns, QUERIES, SIZE)
    if e is not None:
        store(position, of_position / total[:, None], batch, first, head, length, heads, columns, QUERIES, SIZE)
    log_sums = log_sum + (batch.to(tl.int64) * heads + head) * length + rows
    tl.store(log_sums, largest + tl.log2(total), mask=rows < length)


@triton.jit
def seen_keys(starts, batch, first, rows, length, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """The bounds of the keys that some and that all queries of a block see.

    From which key on some queries of the block see the keys, from which on all of them do, and from which on, because those
    keys may come later than a query, some of them again; in steps of KEYS. Also the first key that each query sees.
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
    """[rows, tokens]: which of the keys each query sees."""
    seen = tokens[None, :] <= rows[:, None]
    if starts is not None:
        seen &= tokens[None, :] >= row_starts[:, None]
    return seen


@triton.jit
def biased(scores, bias, head, rows, tokens, length):
    """Scores of queries `rows` and keys `tokens`, which broadcast to a tile, with the numbers of their distances.

    bias: [H, N], float32, times log2(e) as scores are, or None. Where the key comes after the query or one of them does not
    exist, any number will do: it is read from an end of the head's.
    """
    if bias is None:
        return scores
    else:
        distance = tl.minimum(tl.maximum(rows - tokens, 0), length - 1)
        return scores + tl.load(bias + head.to(tl.int64) * length + distance)


@triton.jit
def state_channel(delta, channel, channels):
    """The channel of e as a value, and how many it has: one for all while there is no delta."""
    if delta is None:
        return 0, 1
    else:
        return channel, channels
