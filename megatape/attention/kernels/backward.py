"""Backward pass of forward.py in two kernels. Each program owns its outputs: no atomic additions, so results are reproducible.

With A the weights, S the scores before softmax, O = A v, U = A e, and q~, k~ the rotated queries and keys:

    d_i  = dO_i.O_i + dU_i.U_i                      dS_ij = A_ij (dO_i.v_j + dU_i.e_j - d_i)
    dq~  = dS k~ / sqrt(R)                          dk~   = dS^T q~ / sqrt(R)
    dq   = dq~ conj(e)                              dk    = dk~ conj(e)         by planes, as complex numbers
    dv   = A^T dO                                   de    = A^T dU + dk~ conj(k) + dq~ conj(q)
    dc_j = - sum over i of dS_ij                    if c_i - c_j is added to the scores

Sums over queries include the query heads of a group. A is recomputed from the scores and the saved logarithms. Shapes as in
forward.py.
"""

import triton
import triton.language as tl

from megatape.attention.kernels.scores import PRECISION, key_range, scores_tile, seen_keys, visible
from megatape.attention.kernels.tiles import (
    halves,
    head_columns,
    load,
    load_halves,
    load_state,
    rotate_back,
    state_channel,
    store,
    store_halves,
)


@triton.jit
def queries_kernel(
    # Inputs
    q,
    rotated_q,
    rotated_k,
    v,
    e,
    initial,
    delta,
    bias,
    decay,
    starts,
    content,
    attended_state,
    log_sum,
    # Gradients of the results
    d_content,
    d_attended_state,
    # Outputs
    d_q,
    d_state,
    row_sum,
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
    """Compute dq, the d_i that keys_kernel reads, and dq~ conj(q), the part of de that comes through queries.

    Programs as in the forward pass.

    rotated_q: Rotated queries [B, N, H, R]. Equal to q if initial is None.
    rotated_k: Rotated keys [B, N, L, R].
    d_q: Gradient of the queries, [B, N, H, R].
    d_state: dq~ conj(q), [B, N, H, R], or None without delta.
    row_sum: d_i, float32 [B, H, N].
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

    # d_i of the block's queries
    queries = load(rotated_q, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
    d_contents = load(d_content, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
    contents = load(content, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
    row_sums = tl.sum(d_contents.to(tl.float32) * contents.to(tl.float32), 1)
    if e is None:
        d_attended_states = d_contents
    else:
        d_attended_states = load(d_attended_state, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
        attended_states = load(attended_state, batch, first, head, length, heads, columns, QUERIES, SIZE, True)
        row_sums += tl.sum(d_attended_states.to(tl.float32) * attended_states.to(tl.float32), 1)
    line = (batch.to(tl.int64) * heads + head) * length + rows
    log_sums = tl.load(log_sum + line, mask=rows < length, other=0.0)
    tl.store(row_sum + line, row_sums, mask=rows < length)
    seen, whole, diagonal, row_starts = seen_keys(starts, batch, first, rows, length, QUERIES, KEYS)

    d_queries = tl.zeros((QUERIES, WIDTH), tl.float32)
    # Keys in the order of the forward pass
    for masked in tl.static_range(2):
        last = tl.minimum(first + QUERIES, length)
        begin, end, gap, skipped = key_range(seen, last, whole, diagonal, masked)
        for step in range(begin, end, KEYS):
            start = step + tl.where(step >= gap, skipped, 0)

            # A, [QUERIES, KEYS]
            keys = load(rotated_k, batch, start, channel, length, channels, columns, KEYS, SIZE, masked)
            values = load(v, batch, start, channel, length, channels, columns, KEYS, SIZE, masked)
            tokens = start + tl.arange(0, KEYS)
            scores = scores_tile(queries, keys, rows[:, None], tokens[None, :], bias, decay, batch, head, length, heads, scale)
            weights = tl.exp2(scores - log_sums[:, None])
            if masked:
                weights = tl.where(visible(tokens, rows, row_starts, starts), weights, 0.0)

            # dA = dO v^T + dU e^T and dS, [QUERIES, KEYS]
            d_weights = tl.dot(d_contents, tl.trans(values), input_precision=PRECISION)
            if e is not None:
                states = load(e, batch, start, e_channel, length, e_channels, columns, KEYS, SIZE, masked)
                d_weights = tl.dot(d_attended_states, tl.trans(states), d_weights, input_precision=PRECISION)
            d_scores = weights * (d_weights - row_sums[:, None])

            # dq~, [QUERIES, WIDTH]
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
    # Inputs
    rotated_q,
    k,
    rotated_k,
    v,
    e,
    initial,
    delta,
    bias,
    decay,
    ends,
    log_sum,
    row_sum,
    # Gradients of the results, and of e through queries
    d_content,
    d_attended_state,
    d_state,
    # Outputs
    d_k,
    d_v,
    d_delta,
    d_decay,
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
    """Compute dk, dv, de, and dc of a bias c_i - c_j.

    dc_j is minus the sum of dS_ij over the queries i. A token's c as a query has no gradient, because softmax ignores a number
    that is added to all scores of a query.

    Each program computes KEYS keys of one channel and sample. Programs with the most queries come first.

    ends: Token after the last one seeing each token, [B, N], or None.
    row_sum, d_state: Outputs of queries_kernel.
    d_k, d_v, d_delta: Gradients, [B, N, L, R]. d_delta is None without delta.
    d_decay: dc, float32 [B, H, N], or None without decay.
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

    # Queries that see some of the keys: from `seen` up to `last`. From `diagonal` up to `whole` they see all of the keys.
    tokens = first + tl.arange(0, KEYS)
    token_ends = tl.zeros((KEYS,), tl.int32) + length
    if ends is not None:
        pointers = ends + batch.to(tl.int64) * length + tokens
        token_ends = tl.load(pointers, mask=tokens < length, other=0).to(tl.int32)
    seen = first // QUERIES * QUERIES
    last = tl.max(token_ends, 0)
    diagonal = tl.minimum(tl.cdiv(first + KEYS, QUERIES) * QUERIES, last)
    whole = tl.min(tl.where(tokens < length, token_ends, length), 0) // QUERIES * QUERIES
    whole = tl.maximum(whole, diagonal)

    d_keys = tl.zeros((KEYS, WIDTH), tl.float32)
    d_values = tl.zeros((KEYS, WIDTH), tl.float32)
    d_states = tl.zeros((KEYS, WIDTH), tl.float32)
    GROUP_P: tl.constexpr = triton.next_power_of_2(GROUP)
    members = tl.arange(0, GROUP_P)
    d_decays = tl.zeros((KEYS, GROUP_P), tl.float32)
    # First the queries that see all of the keys, then, with masking, the queries before and after them.
    for masked in tl.static_range(2):
        begin, end, gap, skipped = key_range(seen, last, diagonal, whole, masked)
        count = tl.cdiv(end - begin, QUERIES)
        # The heads of the group follow each other.
        for step in range(count * GROUP):
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

            # A^T, [KEYS, QUERIES]
            queries = load(rotated_q, batch, start, head, length, heads, columns, QUERIES, SIZE, masked)
            d_contents = load(d_content, batch, start, head, length, heads, columns, QUERIES, SIZE, masked)
            scores = scores_tile(keys, queries, rows[None, :], tokens[:, None], bias, decay, batch, head, length, heads, scale)
            weights = tl.exp2(scores - log_sums[None, :])
            if masked:
                is_seen = (tokens[:, None] <= rows[None, :]) & (rows[None, :] < token_ends[:, None])
                weights = tl.where(is_seen, weights, 0.0)

            # dA^T, [KEYS, QUERIES], and the gradients of the values, [KEYS, WIDTH]
            d_weights = tl.dot(values, tl.trans(d_contents), input_precision=PRECISION)
            d_values = tl.dot(weights.to(d_contents.dtype), d_contents, d_values, input_precision=PRECISION)
            if e is not None:
                d_attended_states = load(d_attended_state, batch, start, head, length, heads, columns, QUERIES, SIZE, masked)
                d_weights = tl.dot(states, tl.trans(d_attended_states), d_weights, input_precision=PRECISION)
                if delta is not None:
                    d_states = tl.dot(
                        weights.to(d_attended_states.dtype), d_attended_states, d_states, input_precision=PRECISION
                    )

            # dS^T, [KEYS, QUERIES], and dk~, [KEYS, WIDTH]
            d_scores = weights * (d_weights - row_sums[None, :])
            d_keys = tl.dot(d_scores.to(queries.dtype), queries, d_keys, input_precision=PRECISION)
            if decay is not None:
                d_decays -= tl.where(members[None, :] == step // count, tl.sum(d_scores, 1)[:, None], 0.0)
    d_keys *= scale

    if decay is not None:
        member_heads = channel * GROUP + members[None, :]
        pointers = d_decay + (batch.to(tl.int64) * heads + member_heads) * length + tokens[:, None]
        tl.store(pointers, d_decays, mask=(members < GROUP)[None, :] & (tokens < length)[:, None])
    store(d_v, d_values, batch, first, channel, length, channels, columns, KEYS, SIZE)
    if initial is None:
        store(d_k, d_keys, batch, first, channel, length, channels, columns, KEYS, SIZE)
    else:
        d1, d2 = halves(d_keys, KEYS, WIDTH)
        if delta is not None:
            # de: through values, through keys, and through the queries of the group
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
