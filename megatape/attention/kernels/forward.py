"""Forward pass: causal attention over one or two values with the same weights, one block of keys at a time.

FlashAttention (Dao et al., arXiv 2205.14135), with an online softmax. Scores are multiplied by log2(e), so exponentials are
powers of two. Shapes as in model/transformer.py. SIZE is R, and GROUP is the number of query heads per key/value head.
"""

import triton
import triton.language as tl

from megatape.attention.kernels.scores import PRECISION, key_range, scores_tile, seen_keys, visible
from megatape.attention.kernels.tiles import head_columns, joined, load, load_halves, load_state, rotate, state_channel, store

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
    bias: Bias on the scores by distance, see scores.add_bias.
    decay: Bias on the scores by sums of gates, see scores.add_decay.
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
        last = tl.minimum(first + QUERIES, length)
        begin, end, gap, skipped = key_range(seen, last, whole, diagonal, masked)
        for step in range(begin, end, KEYS):
            start = step + tl.where(step >= gap, skipped, 0)

            # Scores, [QUERIES, KEYS]
            keys = load(rotated_k, batch, start, channel, length, channels, columns, KEYS, SIZE, masked)
            tokens = start + tl.arange(0, KEYS)
            scores = scores_tile(queries, keys, rows[:, None], tokens[None, :], bias, decay, batch, head, length, heads, scale)
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
