"""Tiles: some rows of one head in the registers of a kernel, where they lie in memory, and their planes.

Tensors are contiguous, [B, N, heads, SIZE]. A tile of a whole head has WIDTH columns, a power of two; a tile of half a head has
WIDTH / 2. Padding, of each half on its own, reads zero and is not written. Offsets within a tile are 32 bits wide, those of a
tile 64: a tensor may have more than 2^31 elements.
"""

import triton
import triton.language as tl

MIN_WIDTH = 16  # the smallest factor of a matrix product


def width(head_dim: int) -> int:
    """Columns of a tile that holds a head."""
    return max(MIN_WIDTH, triton.next_power_of_2(head_dim))


@triton.jit
def head_columns(SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """The element of the head in each column of a tile; SIZE where there is none."""
    columns = tl.arange(0, WIDTH)
    if SIZE != WIDTH:
        plane = columns % (WIDTH // 2)
        columns = tl.where(plane < SIZE // 2, columns // (WIDTH // 2) * (SIZE // 2) + plane, SIZE)
    return columns


@triton.jit
def half_columns(HALF: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """The same for a tile of the first half of a head (HALF = 0) or the second (1)."""
    plane = tl.arange(0, WIDTH // 2)
    columns = HALF * (SIZE // 2) + plane
    if SIZE != WIDTH:
        columns = tl.where(plane < SIZE // 2, columns, SIZE)
    return columns


@triton.jit
def locate(x, batch, first, head, length, heads, columns, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Pointers to the rows from `first` on of one head, and which of them exist."""
    rows = tl.arange(0, ROWS)
    start = ((batch.to(tl.int64) * length + first) * heads + head) * SIZE
    pointers = x + start + (rows[:, None] * (heads * SIZE) + columns[None, :])
    return pointers, (first + rows < length)[:, None] & (columns < SIZE)[None, :]


@triton.jit
def load(x, batch, first, head, length, heads, columns, ROWS: tl.constexpr, SIZE: tl.constexpr, MASKED: tl.constexpr):
    """MASKED: some of the rows may lie beyond the sample; they read zero."""
    pointers, exist = locate(x, batch, first, head, length, heads, columns, ROWS, SIZE)
    if MASKED or columns.shape[0] != SIZE:
        return tl.load(pointers, mask=exist, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def store(x, values, batch, first, head, length, heads, columns, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Writes the rows and columns that exist, in the dtype of x."""
    pointers, exist = locate(x, batch, first, head, length, heads, columns, ROWS, SIZE)
    tl.store(pointers, values.to(x.dtype.element_ty), mask=exist)


@triton.jit
def load_halves(x, batch, first, head, length, heads, ROWS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Both halves of a head in float32."""
    x1 = load(x, batch, first, head, length, heads, half_columns(0, SIZE, WIDTH), ROWS, SIZE, True)
    x2 = load(x, batch, first, head, length, heads, half_columns(1, SIZE, WIDTH), ROWS, SIZE, True)
    return x1.to(tl.float32), x2.to(tl.float32)


@triton.jit
def store_halves(x, x1, x2, batch, first, head, length, heads, ROWS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Store x1 as the first half of the columns of a block of x, and x2 as the second half."""
    store(x, x1, batch, first, head, length, heads, half_columns(0, SIZE, WIDTH), ROWS, SIZE)
    store(x, x2, batch, first, head, length, heads, half_columns(1, SIZE, WIDTH), ROWS, SIZE)


@triton.jit
def load_state(
    initial, delta, batch, first, channel, length, channels, ROWS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr
):
    """Cosines and sines of the position tensor e = initial [B, N, 1, SIZE] + delta [B, N, channels, SIZE], in float32."""
    cosines, sines = load_halves(initial, batch, first, 0, length, 1, ROWS, SIZE, WIDTH)
    if delta is not None:
        delta_cosines, delta_sines = load_halves(delta, batch, first, channel, length, channels, ROWS, SIZE, WIDTH)
        cosines += delta_cosines
        sines += delta_sines
    return cosines, sines


@triton.jit
def rotate(x1, x2, cosines, sines):
    """Rotate the planes: (x1 + i x2)(c + i s)."""
    return x1 * cosines - x2 * sines, x2 * cosines + x1 * sines


@triton.jit
def rotate_back(x1, x2, cosines, sines):
    """(x1 + i x2)(c - i s): the gradient of `rotate` with respect to x, and with x in place of e that with respect to e."""
    return x1 * cosines + x2 * sines, x2 * cosines - x1 * sines


@triton.jit
def joined(x1, x2, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Two halves as one tile."""
    return tl.reshape(tl.permute(tl.join(x1, x2), (0, 2, 1)), (ROWS, WIDTH))


@triton.jit
def halves(x, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """A tile as its two halves."""
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, WIDTH // 2)), (0, 2, 1)))
