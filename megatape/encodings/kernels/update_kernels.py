"""Triton kernels of TAPE's update: one pass over the position tensor's memory forward, one backward.

The plain counterpart is TapeUpdate in encodings/tape.py.

For each token, let e = e0 + D be its state, U = A e, a = silu(W_x m), and E = e0 + D + g U the state after attention's update.

Forward:

    G = W_down diag(a)
    M = G W_up
    D' = E - e0 + M E

Backward:

    dE = dD' + M^T dD' = dD                    dM = dD' E^T
    dU_h = g_h dE_l                            dg_h = sum of dE_l * U_h
    dW_up = sum over tokens of G^T dM          P = dM W_up^T
    dW_down = sum over tokens of P diag(a)     da = column sums of W_down * P

The matrices of a single token are too small for tensor cores, and loading one token after the other leaves the memory idle. So
a tile has the channels of several tokens as its ROWS rows, and their matrices M are the diagonal blocks of one matrix
[ROWS, ROWS]. While a program computes one tile, it loads the next one. Each program handles every num_programs-th tile.

Shapes as in encodings/tape.py. Heads of U are STRIDE elements apart. Names ending in _P are padded sizes. Rows of padding
read zero.
"""

import triton
import triton.language as tl

# Precision of float32 products.
PRECISION = tl.constexpr("tf32x3")


@triton.jit
def _load_up(
    up, INNER: tl.constexpr, CHANNELS: tl.constexpr, INNER_P: tl.constexpr, CHANNELS_P: tl.constexpr, ROWS: tl.constexpr
):
    """Load W_up for each token of a tile, [INNER_P, ROWS]."""
    inner = tl.arange(0, INNER_P)[:, None]
    channel = (tl.arange(0, ROWS) % CHANNELS_P)[None, :]
    return tl.load(up + inner * CHANNELS + channel, mask=(inner < INNER) & (channel < CHANNELS), other=0.0)


@triton.jit
def _load_down(
    down, INNER: tl.constexpr, CHANNELS: tl.constexpr, INNER_P: tl.constexpr, CHANNELS_P: tl.constexpr, ROWS: tl.constexpr
):
    """Load W_down for each token of a tile, [ROWS, INNER_P]."""
    channel = (tl.arange(0, ROWS) % CHANNELS_P)[:, None]
    inner = tl.arange(0, INNER_P)[None, :]
    return tl.load(down + channel * INNER + inner, mask=(channel < CHANNELS) & (inner < INNER), other=0.0)


@triton.jit
def _same_token(CHANNELS_P: tl.constexpr, ROWS: tl.constexpr):
    """Return whether two rows are channels of one token, [ROWS, ROWS]."""
    token = tl.arange(0, ROWS) // CHANNELS_P
    return token[:, None] == token[None, :]


@triton.jit
def _locate(
    x,
    first,
    member,
    tokens,
    HEADS_OF_CHANNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    CHANNELS_P: tl.constexpr,
    SIZE_P: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Return pointers to one head of each channel in a tile, and whether they exist, both [ROWS, SIZE_P].

    Heads of x are STRIDE elements apart.
    """
    row = tl.arange(0, ROWS)
    token = row // CHANNELS_P
    channel = row % CHANNELS_P
    element = tl.arange(0, SIZE_P)
    exists = (first + token < tokens) & (channel < CHANNELS)
    start = first * (CHANNELS * HEADS_OF_CHANNEL * STRIDE) + member * STRIDE
    offset = (token * CHANNELS + channel) * (HEADS_OF_CHANNEL * STRIDE)
    return x + start + (offset[:, None] + element[None, :]), exists[:, None] & (element < SIZE)[None, :]


@triton.jit
def _locate_tokens(x, first, tokens, SIZE: tl.constexpr, SIZE_P: tl.constexpr, TOKENS: tl.constexpr):
    """Return pointers to the tokens of a tile in x [tokens, SIZE], and whether they exist, both [TOKENS, SIZE_P]."""
    token = tl.arange(0, TOKENS)
    element = tl.arange(0, SIZE_P)
    pointers = x + first * SIZE + (token[:, None] * SIZE + element[None, :])
    return pointers, (first + token < tokens)[:, None] & (element < SIZE)[None, :]


@triton.jit
def _for_each_channel(x, SIZE_P: tl.constexpr, CHANNELS_P: tl.constexpr, ROWS: tl.constexpr):
    """Repeat rows of tokens for their channels, [ROWS / CHANNELS_P, SIZE_P] -> [ROWS, SIZE_P]."""
    repeated = tl.broadcast_to(x[:, None, :], (ROWS // CHANNELS_P, CHANNELS_P, SIZE_P))
    return tl.reshape(repeated, (ROWS, SIZE_P))


@triton.jit
def _load_gains(gain, member, GROUP: tl.constexpr, CHANNELS: tl.constexpr, CHANNELS_P: tl.constexpr, ROWS: tl.constexpr):
    """Load the gain of one head of each channel, float32 [ROWS]."""
    channel = tl.arange(0, ROWS) % CHANNELS_P
    return tl.load(gain + channel * GROUP + member, mask=channel < CHANNELS, other=0.0).to(tl.float32)


@triton.jit
def _before_mixing(
    initial,
    delta,
    attended,
    gain,
    first,
    tokens,
    GROUP: tl.constexpr,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    CHANNELS_P: tl.constexpr,
    SIZE_P: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Return E and E - e0 of a tile, both float32 [ROWS, SIZE_P], and U of each channel's last head unless attended is None."""
    if delta is None:
        added = tl.zeros((ROWS, SIZE_P), tl.float32)
    else:
        pointers, exist = _locate(delta, first, 0, tokens, 1, SIZE, CHANNELS, SIZE, CHANNELS_P, SIZE_P, ROWS)
        added = tl.load(pointers, mask=exist, other=0.0).to(tl.float32)
    last_attended = added
    if attended is not None:
        for member in tl.static_range(GROUP):
            gains = _load_gains(gain, member, GROUP, CHANNELS, CHANNELS_P, ROWS)
            pointers, exist = _locate(attended, first, member, tokens, GROUP, STRIDE, CHANNELS, SIZE, CHANNELS_P, SIZE_P, ROWS)
            last_attended = tl.load(pointers, mask=exist, other=0.0)
            added += gains[:, None] * last_attended.to(tl.float32)
    pointers, exist = _locate_tokens(initial, first, tokens, SIZE, SIZE_P, ROWS // CHANNELS_P)
    angles = tl.load(pointers, mask=exist, other=0.0)
    # Channels of padding get angles too, but their weights are zero.
    state = added + _for_each_channel(angles, SIZE_P, CHANNELS_P, ROWS)
    return state, added, last_attended


@triton.jit
def update_kernel(
    # Inputs
    initial,
    delta,
    attended,
    gain,
    active,
    up,
    down,
    # Output
    out,
    # Sizes
    tokens,
    # Compile-time sizes
    GROUP: tl.constexpr,
    GROUP_P: tl.constexpr,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    CHANNELS_P: tl.constexpr,
    INNER_P: tl.constexpr,
    SIZE_P: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute out = D'."""
    TOKENS: tl.constexpr = ROWS // CHANNELS_P
    ups = _load_up(up, INNER, CHANNELS, INNER_P, CHANNELS_P, ROWS)
    downs = _load_down(down, INNER, CHANNELS, INNER_P, CHANNELS_P, ROWS)
    same_token = _same_token(CHANNELS_P, ROWS)
    tiles = tl.cdiv(tokens, TOKENS)
    for step in range(tl.cdiv(tiles - tl.program_id(0), tl.num_programs(0))):
        first = (tl.program_id(0).to(tl.int64) + step * tl.num_programs(0)) * TOKENS
        state, added, _ = _before_mixing(
            initial, delta, attended, gain, first, tokens, GROUP, STRIDE, CHANNELS, SIZE, CHANNELS_P, SIZE_P, ROWS
        )
        state = state.to(downs.dtype)
        pointers, exist = _locate_tokens(active, first, tokens, INNER, INNER_P, TOKENS)
        gates = tl.load(pointers, mask=exist, other=0.0)
        gates = _for_each_channel(gates, INNER_P, CHANNELS_P, ROWS).to(tl.float32)

        # G [ROWS, INNER_P], and M [ROWS, ROWS]
        gated = (downs.to(tl.float32) * gates).to(downs.dtype)
        mixing = tl.dot(gated, ups, input_precision=PRECISION)
        mixing = tl.where(same_token, mixing, 0.0).to(downs.dtype)

        # D' = E - e0 + M E, [ROWS, SIZE_P]
        added = tl.dot(mixing, state, added, input_precision=PRECISION)
        pointers, exist = _locate(out, first, 0, tokens, 1, SIZE, CHANNELS, SIZE, CHANNELS_P, SIZE_P, ROWS)
        tl.store(pointers, added.to(out.dtype.element_ty), mask=exist)


@triton.jit
def update_backward_kernel(
    # Inputs
    initial,
    delta,
    attended,
    gain,
    active,
    up,
    down,
    d_out,
    # Outputs
    d_delta,
    d_attended,
    d_gain,
    d_active,
    d_up,
    d_down,
    # Sizes
    tokens,
    # Compile-time sizes
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_P: tl.constexpr,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    CHANNELS_P: tl.constexpr,
    INNER_P: tl.constexpr,
    SIZE_P: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute all gradients.

    A program sums the weights' gradients over its tokens, and stores them in its row of a float32 tensor [programs, PARTS].
    """
    TOKENS: tl.constexpr = ROWS // CHANNELS_P
    ups = _load_up(up, INNER, CHANNELS, INNER_P, CHANNELS_P, ROWS)
    downs = _load_down(down, INNER, CHANNELS, INNER_P, CHANNELS_P, ROWS)
    same_token = _same_token(CHANNELS_P, ROWS)
    members = tl.arange(0, GROUP_P)
    d_ups = tl.zeros((ROWS, INNER_P), tl.float32)
    d_downs = tl.zeros((ROWS, INNER_P), tl.float32)
    d_gains = tl.zeros((ROWS, GROUP_P), tl.float32)
    tiles = tl.cdiv(tokens, TOKENS)
    for step in range(tl.cdiv(tiles - tl.program_id(0), tl.num_programs(0))):
        first = (tl.program_id(0).to(tl.int64) + step * tl.num_programs(0)) * TOKENS
        state, _, attended_states = _before_mixing(
            initial, delta, attended, gain, first, tokens, GROUP, STRIDE, CHANNELS, SIZE, CHANNELS_P, SIZE_P, ROWS
        )
        state = state.to(downs.dtype)
        pointers, exist = _locate(d_out, first, 0, tokens, 1, SIZE, CHANNELS, SIZE, CHANNELS_P, SIZE_P, ROWS)
        d_outs = tl.load(pointers, mask=exist, other=0.0).to(downs.dtype)
        gate_pointers, gate_exists = _locate_tokens(active, first, tokens, INNER, INNER_P, TOKENS)
        gates = tl.load(gate_pointers, mask=gate_exists, other=0.0)
        gates = _for_each_channel(gates, INNER_P, CHANNELS_P, ROWS).to(tl.float32)

        # G [ROWS, INNER_P], and M^T [ROWS, ROWS]
        gated = (downs.to(tl.float32) * gates).to(downs.dtype)
        mixing = tl.dot(tl.trans(ups), tl.trans(gated), input_precision=PRECISION)
        mixing = tl.where(same_token, mixing, 0.0).to(downs.dtype)

        # dE = dD, [ROWS, SIZE_P]
        d_state = tl.dot(mixing, d_outs, d_outs.to(tl.float32), input_precision=PRECISION)
        if delta is not None:
            pointers, exist = _locate(d_delta, first, 0, tokens, 1, SIZE, CHANNELS, SIZE, CHANNELS_P, SIZE_P, ROWS)
            tl.store(pointers, d_state.to(d_delta.dtype.element_ty), mask=exist)

        # dU and dg, one query head of each channel at a time
        if attended is not None:
            for member in tl.static_range(GROUP):
                gains = _load_gains(gain, member, GROUP, CHANNELS, CHANNELS_P, ROWS)
                if GROUP > 1:
                    # The heads of a group do not fit in the registers at once, so they are read again.
                    pointers, exist = _locate(
                        attended, first, member, tokens, GROUP, STRIDE, CHANNELS, SIZE, CHANNELS_P, SIZE_P, ROWS
                    )
                    attended_states = tl.load(pointers, mask=exist, other=0.0)
                pointers, exist = _locate(
                    d_attended, first, member, tokens, GROUP, SIZE, CHANNELS, SIZE, CHANNELS_P, SIZE_P, ROWS
                )
                tl.store(pointers, (gains[:, None] * d_state).to(d_attended.dtype.element_ty), mask=exist)
                d_gains += tl.where(
                    members[None, :] == member, tl.sum(attended_states.to(tl.float32) * d_state, 1)[:, None], 0.0
                )

        # dM [ROWS, ROWS], and P [ROWS, INNER_P]
        d_mixing = tl.dot(d_outs, tl.trans(state), input_precision=PRECISION)
        d_mixing = tl.where(same_token, d_mixing, 0.0).to(downs.dtype)
        d_gated = tl.dot(d_mixing, tl.trans(ups), input_precision=PRECISION)

        # Gradients of the weights, and da [TOKENS, INNER_P]
        d_ups = tl.dot(tl.trans(d_mixing), gated, d_ups, input_precision=PRECISION)
        d_downs += d_gated * gates
        d_gates = tl.sum(tl.reshape(d_gated * downs.to(tl.float32), (TOKENS, CHANNELS_P, INNER_P)), 1)
        pointers, exist = _locate_tokens(d_active, first, tokens, INNER, INNER_P, TOKENS)
        tl.store(pointers, d_gates.to(d_active.dtype.element_ty), mask=exist)

    d_ups = tl.sum(tl.reshape(d_ups, (TOKENS, CHANNELS_P, INNER_P)), 0)
    d_downs = tl.sum(tl.reshape(d_downs, (TOKENS, CHANNELS_P, INNER_P)), 0)
    _store_part(d_up, d_ups, PARTS, CHANNELS, INNER, 1, CHANNELS, CHANNELS_P, INNER_P)
    _store_part(d_down, d_downs, PARTS, CHANNELS, INNER, INNER, 1, CHANNELS_P, INNER_P)
    if attended is not None:
        d_gains = tl.sum(tl.reshape(d_gains, (TOKENS, CHANNELS_P, GROUP_P)), 0)
        _store_part(d_gain, d_gains, PARTS, CHANNELS, GROUP, GROUP, 1, CHANNELS_P, GROUP_P)


@triton.jit
def _store_part(
    x,
    values,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNEL_STRIDE: tl.constexpr,
    COLUMN_STRIDE: tl.constexpr,
    CHANNELS_P: tl.constexpr,
    COLUMNS_P: tl.constexpr,
):
    """Store this program's part of x, [CHANNELS, COLUMNS]. Parts of programs are PARTS elements apart."""
    channel = tl.arange(0, CHANNELS_P)[:, None]
    column = tl.arange(0, COLUMNS_P)[None, :]
    start = tl.program_id(0).to(tl.int64) * PARTS
    pointers = x + start + (channel * CHANNEL_STRIDE + column * COLUMN_STRIDE)
    tl.store(pointers, values, mask=(channel < CHANNELS) & (column < COLUMNS))
