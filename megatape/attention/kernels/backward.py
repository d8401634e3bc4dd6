"""The gradient of forward.py in two passes, each of which owns what it writes: no atomic additions, so results repeat exactly.

With A the weights, S the scores before softmax, O = A v, U = A e, and q~, k~ the rotated queries and keys:

    d_i  = dO_i.O_i + dU_i.U_i                      dS_ij = A_ij (dO_i.v_j + dU_i.e_j - d_i)
    dq~  = dS k~ / sqrt(R)                          dk~   = dS^T q~ / sqrt(R)
    dq   = dq~ conj(e)                              dk    = dk~ conj(e)         by planes, as complex numbers
    dv   = A^T dO                                   de    = A^T dU + dk~ conj(k) + dq~ conj(q)

A, the sums over queries of a group's heads included, is computed again from the scores and the saved logarithms. Shapes as in
forward.py.
"""

import triton
import triton.language as tl

from megatape.attention.kernels.forward import LOG2_E, PRECISION, biased, seen_keys, state_channel, visible
from megatape.attention.kernels.tiles import (
    halves,
    head_columns,
    load,
    load_halves,
    load_state,
    rotate_back,
    store,
    store_halves,
)


@triton.jit
def queries_kernel(
    q, rotated_q, k, v, e, initial, delta, bias, starts, content, position, log_sum, d_content, d_position, d_q, d_state,
    row_sum, length, heads, scale,
    GROUP: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """d_q; row_sum, the d_i of all queries, which the other pass reads; and d_state, the part of de that comes through queries.

    d_q, d_state: [B, N, H, R]; row_sum: [B, H, N], float32. k is rotated, and so is rotated_q: q without initial. Without
    delta there is no d_state. Program: as in the forward pass.
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
    queries = load(rotated_q, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
    d_contents = load(d_content, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
    contents = load(content, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
    row_sums = tl.sum(d_contents.to(tl.float32) * contents.to(tl.float32), 1)
    if e is None:
        d_positions = d_contents
    else:
        d_positions = load(d_position, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
        positions = load(position, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
        row_sums += tl.sum(d_positions.to(tl.float32) * positions.to(tl.float32), 1)
    line = (batch.to(tl.int64) * heads + head) * length + rows
    log_sums = tl.load(log_sum + line, mask=rows < length, other=0.0)
    tl.store(row_sum + line, row_sums, mask=rows < length)
    seen, whole, diagonal, row_starts = seen_keys(starts, batch, first, rows, length, QUERIES, KEYS)

    d_queries = tl.zeros((QUERIES, WIDTH), tl.float32)
    for masked in tl.static_range(2):  # keys as in the forward pass
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
            values = load(v, batch, start, channel, length, channels, columns, KEYS, SIZE, masked)
            scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2_E)
            tokens = start + tl.arange(0, KEYS)
            scores = biased(scores, bias, head, rows[:, None], tokens[None, :], length)
            weights = tl.exp2(scores - log_sums[:, None])
            if masked:
                weights = tl.where(visible(tokens, rows, row_starts, starts), weights, 0.0)
            d_weights = tl.dot(d_contents, tl.trans(values), input_precision=PRECISION)
            if e is not None:
                states = load(e, batch, start, e_channel, length, e_channels, columns, KEYS, SIZE, masked)
                d_weights = tl.dot(d_positions, tl.trans(states), d_weights, input_precision=PRECISION)
            d_scores = weights * (d_weights - row_sums[:, None])
            d_queries = tl.dot(d_scores.to(keys.dtype), keys, d_queries, input_precision=PRECISION)
    d_queries *= scale

    if initial is None:
        store(d_q, d_queries, batch, first, head, length, heads, columns, QUERIES, SIZE)
    else:
        d1, d2 = halves(d_queries, QUERIES, WIDTH)
        if delta is not None:
            x1, x2 = load_halves(q, batch, first, head, length, heads, QUERIES, SIZE, WIDTH)
            x1, x2 = rotate_back(d1, d2, x1, x2)
            store_halves(d_state, x1, x2, batch, first, head, length, heads, QUERIES, SIZE, WIDTH)
        cosines, sines = load_state(initial, delta, batch, first, channel, length, channels, QUERIES, SIZE, WIDTH)
        d1, d2 = rotate_back(d1, d2, cosines, sines)
        store_halves(d_q, d1, d2, batch, first, head, length, heads, QUERIES, SIZE, WIDTH)


@triton.jit
def keys_kernel(
    rotated_q, k, rotated_k, v, e, initial, delta, bias, ends, log_sum, row_sum, d_content, d_position, d_state, d_k, d_v,
    d_delta, length, heads, scale,
    GROUP: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """d_k, d_v and d_delta, [B, N, L, R]. d_state and row_sum: from queries_kernel.

    ends: [B, N] or None, the token after the last one that sees each token. Program: KEYS keys of a channel of a sample; those
    that the most queries see come first.
    """
    first = tl.program_id(0) * KEYS
    channel = tl.program_id(1)
    batch = tl.program_id(2)
    channels = heads // GROUP
    e_channel, e_channels = state_channel(delta, channel, channels)
    columns = head_columns(SIZE, WIDTH)
    keys = load(rotated_k, batch, first, channel, length, channels, columns, KEYS, SIZE, True)
    values = load(v, batch, first, channel, length, channels, columns, KEYS, SIZE, True)
    if e is None:
        states = values
    else:
        states = load(e, batch, first, e_channel, length, e_channels, columns, KEYS, SIZE, True)
    tokens = first + tl.arange(0, KEYS)
    token_ends = tl.zeros((KEYS,), tl.int32) + length
    if ends is not None:
        pointers = ends + batch.to(tl.int64) * length + tokens
        token_ends = tl.load(pointers, mask=tokens < length, other=0).to(tl.int32)
    last = tl.max(token_ends, 0)
    # Queries from `diagonal` on see all of the keys, those from `whole` on only some again.
    diagonal = tl.minimum(tl.cdiv(first + KEYS, QUERIES) * QUERIES, last)
    whole = tl.min(tl.where(tokens < length, token_ends, length), 0) // QUERIES * QUERIES
    whole = tl.maximum(whole, diagonal)

    d_keys = tl.zeros((KEYS, WIDTH), tl.float32)
    d_values = tl.zeros((KEYS, WIDTH), tl.float32)
    d_states = tl.zeros((KEYS, WIDTH), tl.float32)
    for masked in tl.static_range(2):  # first the queries that see all of the keys, then those around them
        if masked:
            begin = first // QUERIES * QUERIES
            end = last - (whole - diagonal)
            gap = diagonal
            skipped = whole - diagonal
        else:
            begin = diagonal
            end = whole
            gap = whole
            skipped = 0
        count = tl.cdiv(end - begin, QUERIES)
        for step in range(count * GROUP):  # one head of the group after the other
            head = channel * GROUP + step // count
            start = begin + step % count * QUERIES
            start += tl.where(start >= gap, skipped, 0)
            rows = start + tl.arange(0, QUERIES)
            line = (batch.to(tl.int64) * heads + head) * length + rows
            if masked:
                log_sums = tl.load(log_sum + line, mask=rows < length, other=0.0)
                row_sums = tl.load(row_sum + line, mask=rows < length, other=0.0)
            else:
                log_sums = tl.load(log_sum + line)
                row_sums = tl.load(row_sum + line)
            queries = load(rotated_q, batch, start, head, length, heads, columns, QUERIES, SIZE, masked)
            d_contents = load(d_content, batch, start, head, length, heads, columns, QUERIES, SIZE, masked)
            scores = tl.dot(keys, tl.trans(queries), input_precision=PRECISION) * (scale * LOG2_E)  # transposed
            scores = biased(scores, bias, head, rows[None, :], tokens[:, None], length)
            weights = tl.exp2(scores - log_sums[None, :])
            if masked:
                seen = (tokens[:, None] <= rows[None, :]) & (rows[None, :] < token_ends[:, None])
                weights = tl.where(seen, weights, 0.0)
            d_weights = tl.dot(values, tl.trans(d_contents), input_precision=PRECISION)
            d_values = tl.dot(weights.to(d_contents.dtype), d_contents, d_values, input_precision=PRECISION)
            if e is not None:
                d_positions = load(d_position, batch, start, head, length, heads, columns, QUERIES, SIZE, masked)
                d_weights = tl.dot(states, tl.trans(d_positions), d_weights, input_precision=PRECISION)
                if delta is not None:
                    d_states = tl.dot(weights.to(d_positions.dtype), d_positions, d_states, input_precision=PRECISION)
            d_scores = weights * (d_weights - row_sums[None, :])
            d_keys = tl.dot(d_scores.to(queries.dtype), queries, d_keys, input_precision=PRECISION)
    d_keys *= scale

    store(d_v, d_values, batch, first, channel, length, channels, columns, KEYS, SIZE)
    if initial is None:
        store(d_k, d_keys, batch, first, channel, length, channels, columns, KEYS, SIZE)
    else:
        d1, d2 = halves(d_keys, KEYS, WIDTH)
        if delta is not None:
            s1, s2 = halves(d_states, KEYS, WIDTH)
            x1, x2 = load_halves(k, batch, first, channel, length, channels, KEYS, SIZE, WIDTH)
            x1, x2 = rotate_back(d1, d2, x1, x2)
            s1 += x1
            s2 += x2
            for member in range(GROUP):
                head = channel * GROUP + member
                x1, x2 = load_halves(d_state, batch, first, head, length, heads, KEYS, SIZE, WIDTH)
                s1 += x1
                s2 += x2
            store_halves(d_delta, s1, s2, batch, first, channel, length, channels, KEYS, SIZE, WIDTH)
        cosines, sines = load_state(initial, delta, batch, first, channel, length, channels, KEYS, SIZE, WIDTH)
        d1, d2 = rotate_back(d1, d2, cosines, sines)
        store_halves(d_k, d1, d2, batch, first, channel, length, channels, KEYS, SIZE, WIDTH)
