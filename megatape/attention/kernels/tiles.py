"""Tiles: some rows of one head in a kernel's registers, their location in memory, and rotating their planes.

Tensors are contiguous, [B, N, heads, SIZE]. A whole head's tile has WIDTH columns, a power of two, and half a head's tile has
WIDTH / 2. Each half is padded separately. Padding reads zero and is not written. Offsets within a tile have 32 bits, offsets of
tiles 64 bits, because tensors may have more than 2^31 elements.

Arguments of the functions below: x points to a tensor with `length` tokens (N) and `heads` heads. A tile has ROWS rows of
one head in the sample `batch`, starting with token `first`.
"""

import triton
import triton.language as tl

# Smallest factor of a matrix product.
MIN_WIDTH = 16


def width(head_dim: int) -> int:
    """Return the number of columns in a head's tile."""
    return max(MIN_WIDTH, triton.next_power_of_2(head_dim))


@triton.jit
def head_columns(SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Return each tile column's element of the head, [WIDTH], or SIZE for padding."""
    columns = tl.arange(0, WIDTH)
    if SIZE != WIDTH:
        plane = columns % (WIDTH // 2)
        columns = tl.where(plane < SIZE // 2, columns // (WIDTH // 2) * (SIZE // 2) + plane, SIZE)
    return columns


@triton.jit
def half_columns(HALF: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Return each column's element of the head, [WIDTH / 2], in the tile of its first (HALF = 0) or second half (1)."""
    plane = tl.arange(0, WIDTH // 2)
    columns = HALF * (SIZE // 2) + plane
    if SIZE != WIDTH:
        columns = tl.where(plane < SIZE // 2, columns, SIZE)
    return columns


@triton.jit
def locate(
    x,
    batch,
    first,
    head,
    length,
    heads,
    columns,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Return pointers to the elements of a tile, and whether they exist, [ROWS, columns]."""
    rows = tl.arange(0, ROWS)
    start = ((batch.to(tl.int64) * length + first) * heads + head) * SIZE
    pointers = x + start + (rows[:, None] * (heads * SIZE) + columns[None, :])
    return pointers, (first + rows < length)[:, None] & (columns < SIZE)[None, :]


@triton.jit
def load(
    x,
    batch,
    first,
    head,
    length,
    heads,
    columns,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Load a tile [ROWS, columns]. With MASKED, rows beyond the sample read zero. Without, there must be none."""
    pointers, exist = locate(x, batch, first, head, length, heads, columns, ROWS, SIZE)
    if MASKED or columns.shape[0] != SIZE:
        return tl.load(pointers, mask=exist, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def store(
    x,
    values,
    batch,
    first,
    head,
    length,
    heads,
    columns,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Store the existing rows and columns of a tile, in the dtype of x."""
    pointers, exist = locate(x, batch, first, head, length, heads, columns, ROWS, SIZE)
    tl.store(pointers, values.to(x.dtype.element_ty), mask=exist)


@triton.jit
def load_halves(
    x,
    batch,
    first,
    head,
    length,
    heads,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Load both halves of a head in float32, [ROWS, WIDTH / 2] each."""
    x1 = load(x, batch, first, head, length, heads, half_columns(0, SIZE, WIDTH), ROWS, SIZE, True)
    x2 = load(x, batch, first, head, length, heads, half_columns(1, SIZE, WIDTH), ROWS, SIZE, True)
    return x1.to(tl.float32), x2.to(tl.float32)


@triton.jit
def store_halves(
    x,
    x1,
    x2,
    batch,
    first,
    head,
    length,
    heads,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Store x1 as the first half of a head and x2 as the second half."""
    store(x, x1, batch, first, head, length, heads, half_columns(0, SIZE, WIDTH), ROWS, SIZE)
    store(x, x2, batch, first, head, length, heads, half_columns(1, SIZE, WIDTH), ROWS, SIZE)


@triton.jit
def load_state(
    initial,
    delta,
    batch,
    first,
    channel,
    length,
    channels,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Load cosines and sines for one channel of e = initial + delta in float32, [ROWS, WIDTH / 2] each.

    initial is [B, N, 1, SIZE], delta is [B, N, channels, SIZE] or None.
    """
    cosines, sines = load_halves(initial, batch, first, 0, length, 1, ROWS, SIZE, WIDTH)
    if delta is not None:
        delta_cosines, delta_sines = load_halves(delta, batch, first, channel, length, channels, ROWS, SIZE, WIDTH)
        cosines += delta_cosines
        sines += delta_sines
    return cosines, sines


@triton.jit
def state_channel(delta, channel, channels):
    """Return the channel of e as a value, and its number of channels. Without delta, one channel serves all heads."""
    if delta is None:
        return 0, 1
    else:
        return channel, channels


@triton.jit
def rotate(x1, x2, cosines, sines):
    """Rotate the planes: (x1 + i x2)(c + i s)."""
    return x1 * cosines - x2 * sines, x2 * cosines + x1 * sines


@triton.jit
def rotate_back(x1, x2, cosines, sines):
    """Rotate the planes back: (x1 + i x2)(c - i s).

    With a gradient in place of x, this is the gradient of x before `rotate`. With x in place of (c, s), the gradient of (c, s).
    """
    return x1 * cosines + x2 * sines, x2 * cosines - x1 * sines


@triton.jit
def joined(x1, x2, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Join two halves in one tile [ROWS, WIDTH]."""
    return tl.reshape(tl.permute(tl.join(x1, x2), (0, 2, 1)), (ROWS, WIDTH))


@triton.jit
def halves(x, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Split a tile into its two halves, [ROWS, WIDTH / 2] each."""
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, WIDTH // 2)), (0, 2, 1)))
