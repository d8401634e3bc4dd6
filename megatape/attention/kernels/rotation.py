"""Rotation of queries and keys by the position tensor in one pass over memory, before kernels that read them repeatedly.

attention/rotation.py does the same in plain PyTorch. Shapes as in model/transformer.py.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.attention.kernels.tiles import load_halves, load_state, rotate, rotate_back, store_halves, width
from megatape.nn.kernels.launch import launch

# Tokens and warps per program
ROWS = 64
WARPS = 4


class Rotation(torch.autograd.Function):
    """Queries [B, N, H, R] and keys [B, N, L, R] times e, and e [B, N, L, R] as a value if `moves_state`.

    The results have the dtype of queries and keys. initial is float32 [B, N, 1, R], delta is [B, N, L, R] or None. The backward
    pass keeps both. With a delta, whose gradient needs them, it keeps queries and keys as well.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, initial: Tensor, delta: Tensor | None, moves_state: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        q = q.contiguous()
        k = k.contiguous()
        initial = initial.expand(len(q), -1, -1, -1).contiguous()
        if delta is None:
            ctx.save_for_backward(None, None, initial, None)
        else:
            delta = delta.contiguous()
            ctx.save_for_backward(q, k, initial, delta)
        rotated_k, e = rotated_with_state(k, initial, delta, moves_state)
        if e is not None:
            e = e.expand_as(k)
        return rotated(q, k, initial, delta), rotated_k, e

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        d_rotated_q: Tensor,
        d_rotated_k: Tensor,
        d_state: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        q, k, initial, delta = ctx.saved_tensors
        d_rotated_q = d_rotated_q.contiguous()
        d_rotated_k = d_rotated_k.contiguous()
        d_q = torch.empty_like(d_rotated_q)
        d_k = torch.empty_like(d_rotated_k)
        d_delta = None
        if delta is None:
            d_state = None
        else:
            d_delta = torch.empty_like(delta)
            if d_state is not None:
                d_state = d_state.contiguous()
        _launch(
            rotate_backward_kernel,
            d_rotated_k,
            d_rotated_q,
            d_rotated_k,
            # Inputs
            q=q,
            k=k,
            initial=initial,
            delta=delta,
            d_rotated_q=d_rotated_q,
            d_rotated_k=d_rotated_k,
            d_state=d_state,
            # Outputs
            d_q=d_q,
            d_k=d_k,
            d_delta=d_delta,
        )
        return d_q, d_k, None, d_delta, None


def rotated(
    x: Tensor,
    k: Tensor,
    initial: Tensor,
    delta: Tensor | None,
    state: Tensor | None = None,
) -> Tensor:
    """Rotate heads by e.

    Args:
        x: Queries or keys [B, N, heads, R].
        k: Keys [B, N, L, R], for the number of channels.
        initial: First term of e, [B, N, 1, R].
        delta: Second term of e, [B, N, L, R], or None.
        state: Tensor [B, N, L, R] to write e to, or None.

    Returns:
        Rotated heads [B, N, heads, R], in their dtype.
    """
    product = torch.empty_like(x)
    _launch(rotate_kernel, x, x, k, x=x, initial=initial, delta=delta, rotated=product, state=state)
    return product


def rotated_with_state(
    k: Tensor,
    initial: Tensor,
    delta: Tensor | None,
    moves_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Rotate keys by e, and return e as a value if `moves_state`: [B, N, 1, R] without a delta, or [B, N, L, R]."""
    if not moves_state:
        return rotated(k, k, initial, delta), None
    if delta is None:
        return rotated(k, k, initial, delta), initial.to(k.dtype)
    e = torch.empty_like(k)
    return rotated(k, k, initial, delta, e), e


def _launch(kernel: Any, programs: Tensor, q: Tensor, k: Tensor, /, **tensors: Tensor | None) -> None:
    """Run a kernel on token blocks of each head in `programs`."""
    batch, length, heads, size = q.shape
    sizes: dict[str, Any] = {
        "length": length,
        "heads": heads,
        "GROUP": heads // k.shape[2],
        "SIZE": size,
        "WIDTH": width(size),
        "ROWS": ROWS,
    }
    grid = (triton.cdiv(length, ROWS), programs.shape[2], batch)
    launch(kernel, grid, 0, WARPS, 1, tensors | sizes)


@triton.jit
def rotate_kernel(
    # Inputs
    x,
    initial,
    delta,
    # Outputs
    rotated,
    state,
    # Sizes
    length,
    heads,
    # Compile-time sizes
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute rotated = x * e with GROUP heads of x for each channel of e, and state = e.

    Each program computes a token block of one head and sample.

    x, rotated: [B, N, heads, SIZE].
    initial: [B, N, 1, SIZE].
    delta: [B, N, heads / GROUP, SIZE] or None.
    state: e in its dtype, [B, N, heads / GROUP, SIZE], or None.
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
    # Outputs
    d_q,
    d_k,
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
    """Compute the gradients d_q and d_k = gradients * conj e, and d_delta unless delta is None.

    d_delta is d_state plus gradients * conj (q, k), summed over the heads of a channel. Each program computes a token block of
    one channel and sample.

    Shapes as in rotate_kernel. A d_state of None counts as zero.
    """
    first = tl.program_id(0) * ROWS
    channel = tl.program_id(1)
    batch = tl.program_id(2)
    channels = heads // GROUP
    cosines, sines = load_state(initial, delta, batch, first, channel, length, channels, ROWS, SIZE, WIDTH)
    d_cosines = tl.zeros_like(cosines)
    d_sines = tl.zeros_like(sines)
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
