"""Forward pass: causal attention over one or two values with the same weights, one block of keys at a time.

FlashAttention (Dao et al., arXiv 2205.14135), with an online softmax. Scores are multiplied by log2(e), so exponentials are
powers of two. Shapes as in model/transformer.py. SIZE is R, and GROUP is the number of query heads per key/value head.
"""

import triton
import triton.language as tl

from megatape.attention.kernels.tiles import head_columns, joined, load, load_halves, load_state, rotate, store

LOG2_E = tl.constexpr(1.4426950408889634)
# Precision of float32 products: three TF32 products in tensor cores, as exact as one in float32.
PRECISION = tl.constexpr("tf32x3")
# Score of a masked key. Finite, because a row may have no visible key in its first block.
HIDDEN = tl.constexpr(-1e30)


@triton.jit
def forward_kernel(
    # Inputs
    q,
    rotated_k,
    v,
    e,
    initial,
    delta,
    bias,
    decay,
    starts,
    # Outputs
    content,
    attended_state,
    log_sum,
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
    """Compute content = A v, attended_state = A e, and log_sum, the base-2 logarithms of the sums of exponentials.

    Each program computes QUERIES queries of one head and sample. Programs seeing the most keys come first.

    q: Queries [B, N, H, R]. Rotated here by initial + delta, unless initial is None.
    rotated_k: Rotated keys [B, N, L, R].
    v: Values [B, N, L, R].
    e: Position tensor as a value, [B, N, L, R], or [B, N, 1, R] if delta is None. None to compute A v only.
    initial, delta: Terms of the rotation, see tiles.load_state.
    bias: Bias on the scores by distance, see add_bias.
    decay: Bias on the scores by sums of gates, see add_decay.
    starts: First token that each token sees, [B, N], or None.
    content, attended_state: [B, N, H, R].
    log_sum: Float32 [B, H, N].
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

    # Queries of the block, [QUERIES, WIDTH]
    if initial is None:
        queries = load(q, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
    else:
        x1, x2 = load_halves(q, batch, first, head, length, heads, QUERIES, SIZE, WIDTH)
        cosines, sines = load_state(initial, delta, batch, first, channel, length, channels, QUERIES, SIZE, WIDTH)
        x1, x2 = rotate(x1, x2, cosines, sines)
        queries = joined(x1, x2, QUERIES, WIDTH).to(q.dtype.element_ty)
    seen, whole, diagonal, row_starts = seen_keys(starts, batch, first, rows, length, QUERIES, KEYS)

    content_sum = tl.zeros((QUERIES, WIDTH), tl.float32)
    state_sum = tl.zeros((QUERIES, WIDTH), tl.float32)
    largest = tl.full((QUERIES,), HIDDEN, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    # First the keys that all queries of the block see, then, with masking, the keys before and after them.
    for masked in tl.static_range(2):
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

            # Scores, [QUERIES, KEYS]
            keys = load(rotated_k, batch, start, channel, length, channels, columns, KEYS, SIZE, masked)
            scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2_E)
            tokens = start + tl.arange(0, KEYS)
            scores = add_bias(scores, bias, head, rows[:, None], tokens[None, :], length)
            scores = add_decay(scores, decay, batch, head, rows[:, None], tokens[None, :], length, heads)
            if masked:
                scores = tl.where(visible(tokens, rows, row_starts, starts), scores, HIDDEN)

            # Online softmax: sums of earlier blocks fade if the maximum grows.
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            weights = tl.exp2(scores - new_largest[:, None])
            fade = tl.exp2(largest - new_largest)
            total = total * fade + tl.sum(weights, 1)
            largest = new_largest

            # Weighted sums of the values, [QUERIES, WIDTH]
            weights = weights.to(v.dtype.element_ty)
            values = load(v, batch, start, channel, length, channels, columns, KEYS, SIZE, masked)
            content_sum = tl.dot(weights, values, content_sum * fade[:, None], input_precision=PRECISION)
            if e is not None:
                states = load(e, batch, start, e_channel, length, e_channels, columns, KEYS, SIZE, masked)
                state_sum = tl.dot(weights, states, state_sum * fade[:, None], input_precision=PRECISION)

    store(content, content_sum / total[:, None], batch, first, head, length, heads, columns, QUERIES, SIZE)
    if e is not None:
        store(attended_state, state_sum / total[:, None], batch, first, head, length, heads, columns, QUERIES, SIZE)
    log_sums = log_sum + (batch.to(tl.int64) * heads + head) * length + rows
    tl.store(log_sums, largest + tl.log2(total), mask=rows < length)


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


@triton.jit
def state_channel(delta, channel, channels):
    """Return the channel of e as a value, and its number of channels. Without delta, one channel serves all heads."""
    if delta is None:
        return 0, 1
    else:
        return channel, channels
