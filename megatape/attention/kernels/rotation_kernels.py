"""Triton kernels of the rotation by the position tensor. Shapes as in model/transformer.py. SIZE is R.

The plain counterpart is in attention/rotation.py.
"""

import triton
import triton.language as tl

from megatape.attention.kernels.tiles import load_halves, load_state, rotate, rotate_back, store_halves


@triton.jit
def rotate_kernel(
    # Inputs
    x,
    v,
    initial,
    delta,
    # Outputs
    rotated,
    state,
    values,
    # Sizes
    length,
    heads,
    # Compile-time sizes
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute rotated = x * e with GROUP heads of x for each channel of e, state = e, and values = [v | e].

    Each program computes a token block of one head and sample.

    x, rotated: [B, N, heads, SIZE].
    initial: [B, N, 1, SIZE].
    delta: [B, N, heads / GROUP, SIZE] or None.
    state: e in its dtype, [B, N, heads / GROUP, SIZE], or None.
    v, values: [B, N, heads, SIZE] and [B, N, heads, 2 SIZE], or None. Only with a GROUP of 1. The halves of a head of `values`
        are stored as two heads.
    """
    first = tl.program_id(0) * ROWS
    head = tl.program_id(1)
    batch = tl.program_id(2)
    channel = head // GROUP
    channels = heads // GROUP
    cosines, sines = load_state(initial, delta, batch, first, channel, length, channels, ROWS, SIZE, WIDTH)
    x1, x2 = load_halves(x, batch, first, head, length, heads, ROWS, SIZE, WIDTH)
    x1, x2 = rotate(x1, x2, cosines, sines)
    store_halves(rotated, x1, x2, batch, first, head, length, heads, ROWS, SIZE, WIDTH)
    if state is not None:
        store_halves(state, cosines, sines, batch, first, channel, length, channels, ROWS, SIZE, WIDTH)
    if values is not None:
        x1, x2 = load_halves(v, batch, first, head, length, heads, ROWS, SIZE, WIDTH)
        store_halves(values, x1, x2, batch, first, 2 * head, length, 2 * heads, ROWS, SIZE, WIDTH)
        store_halves(values, cosines, sines, batch, first, 2 * head + 1, length, 2 * heads, ROWS, SIZE, WIDTH)


@triton.jit
def _head_backward(
    # Pointers
    x,
    d_rotated,
    d_x,
    # Tiles of e and of its gradient
    cosines,
    sines,
    d_cosines,
    d_sines,
    # Tile
    batch,
    first,
    head,
    # Sizes
    length,
    heads,
    # Compile-time sizes
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Store the gradient of one head, and add the gradient of its rotation, unless x is None."""
    g1, g2 = load_halves(d_rotated, batch, first, head, length, heads, ROWS, SIZE, WIDTH)
    d1, d2 = rotate_back(g1, g2, cosines, sines)
    store_halves(d_x, d1, d2, batch, first, head, length, heads, ROWS, SIZE, WIDTH)
    if x is not None:
        x1, x2 = load_halves(x, batch, first, head, length, heads, ROWS, SIZE, WIDTH)
        from_cosines, from_sines = rotate_back(g1, g2, x1, x2)
        d_cosines += from_cosines
        d_sines += from_sines
    return d_cosines, d_sines


@triton.jit
def rotate_backward_kernel(
    # Inputs
    q,
    k,
    initial,
    delta,
    d_rotated_q,
    d_rotated_k,
    d_state,
    d_values,
    # Outputs
    d_q,
    d_k,
    d_v,
    d_delta,
    # Sizes
    length,
    heads,
    # Compile-time sizes
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute the gradients d_q and d_k = gradients * conj e, d_v with d_values, and d_delta unless delta is None.

    d_delta is d_state plus gradients * conj (q, k), summed over the heads of a channel. Each program computes a token block of
    one channel and sample.

    Shapes as in rotate_kernel. A d_state of None counts as zero, unless d_values contains it.
    """
    first = tl.program_id(0) * ROWS
    channel = tl.program_id(1)
    batch = tl.program_id(2)
    channels = heads // GROUP
    cosines, sines = load_state(initial, delta, batch, first, channel, length, channels, ROWS, SIZE, WIDTH)
    d_cosines = tl.zeros_like(cosines)
    d_sines = tl.zeros_like(sines)
    if d_values is not None:
        x1, x2 = load_halves(d_values, batch, first, 2 * channel, length, 2 * channels, ROWS, SIZE, WIDTH)
        store_halves(d_v, x1, x2, batch, first, channel, length, channels, ROWS, SIZE, WIDTH)
        if delta is not None:
            d_cosines, d_sines = load_halves(d_values, batch, first, 2 * channel + 1, length, 2 * channels, ROWS, SIZE, WIDTH)
    if d_state is not None:
        d_cosines, d_sines = load_halves(d_state, batch, first, channel, length, channels, ROWS, SIZE, WIDTH)
    d_cosines, d_sines = _head_backward(
        k, d_rotated_k, d_k, cosines, sines, d_cosines, d_sines, batch, first, channel, length, channels, ROWS, SIZE, WIDTH
    )
    for member in range(GROUP):
        head = channel * GROUP + member
        d_cosines, d_sines = _head_backward(
            q, d_rotated_q, d_q, cosines, sines, d_cosines, d_sines, batch, first, head, length, heads, ROWS, SIZE, WIDTH
        )
    if delta is not None:
        store_halves(d_delta, d_cosines, d_sines, batch, first, channel, length, channels, ROWS, SIZE, WIDTH)
