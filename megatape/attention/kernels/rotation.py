"""Rotation of queries and keys by the position tensor, for kernels that read them more than once: one pass over their memory.

Shapes as in model/transformer.py.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.attention.kernels.tiles import load_halves, load_state, rotate, rotate_back, store_halves, width
from megatape.nn.kernels.launch import launch

# tokens of a program
ROWS = 64
WARPS = 4


class Rotation(torch.autograd.Function):
    """Queries [B, N, H, R] and keys [B, N, L, R] times e, and, if it `moves`, e [B, N, L, R], in their dtype.

    initial: float32 [B, N, 1, R]; delta: [B, N, L, R] or None. The backward pass keeps both; and with a delta, whose gradient
    needs them, queries and keys.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, initial: Tensor, delta: Tensor | None, moves: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        q, k, initial = q.contiguous(), k.contiguous(), initial.expand(len(q), -1, -1, -1).contiguous()
        delta = None if delta is None else delta.contiguous()
        rotated_k, e = rotated_with_state(k, initial, delta, moves)
        ctx.save_for_backward(*((None, None) if delta is None else (q, k)), initial, delta)
        return rotated(q, k, initial, delta), rotated_k, None if e is None else e.expand_as(k)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_rotated_q: Tensor, d_rotated_k: Tensor, d_state: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, initial, delta = ctx.saved_tensors
        d_rotated_q = d_rotated_q.contiguous()
        d_rotated_k = d_rotated_k.contiguous()
        d_state = None if d_state is None or delta is None else d_state.contiguous()
        d_q = torch.empty_like(d_rotated_q)
        d_k = torch.empty_like(d_rotated_k)
        d_delta = None if delta is None else torch.empty_like(delta)
        _launch(
            rotate_backward_kernel, d_rotated_k, d_rotated_q, d_rotated_k, q=q, k=k, initial=initial, delta=delta,
            d_rotated_q=d_rotated_q, d_rotated_k=d_rotated_k, d_state=d_state, d_q=d_q, d_k=d_k, d_delta=d_delta,
        )  # fmt: skip
        return d_q, d_k, None, d_delta, None


def rotated(x: Tensor, k: Tensor, initial: Tensor, delta: Tensor | None, state: Tensor | None = None) -> Tensor:
    """Queries or keys times e, in their dtype. state: takes e, unless it is None."""
    product = torch.empty_like(x)
    _launch(rotate_kernel, x, x, k, x=x, initial=initial, delta=delta, rotated=product, state=state)
    return product


def rotated_with_state(k: Tensor, initial: Tensor, delta: Tensor | None, moves: bool) -> tuple[Tensor, Tensor | None]:
    """Rotated keys and, if it `moves`, e as a value: [B, N, 1, R] while there is no delta."""
    if not moves or delta is None:
        return rotated(k, k, initial, delta), initial.to(k.dtype) if moves else None
    e = torch.empty_like(k)
    return rotated(k, k, initial, delta, e), e


def _launch(kernel: Any, programs: Tensor, q: Tensor, k: Tensor, /, **tensors: Tensor | None) -> None:
    """Runs a kernel on blocks of tokens of each head of `programs`."""
    batch, length, heads, size = q.shape
    arguments: dict[str, Any] = {"length": length, "heads": heads, "GROUP": heads // k.shape[2], "SIZE": size}
    arguments |= {"WIDTH": width(size), "ROWS": ROWS}
    launch(kernel, (triton.cdiv(length, ROWS), programs.shape[2], batch), 0, WARPS, 1, tensors | arguments)


@triton.jit
def rotate_kernel(
    x, initial, delta, rotated, state, length, heads,
    GROUP: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """rotated = x * e, with GROUP heads of x for each channel of e, and state = e in its dtype, unless it is None.

    x, rotated: [B, N, heads, SIZE]; initial: [B, N, 1, SIZE]; delta: [B, N, heads / GROUP, SIZE] or None; state: the same
    shape. Program: a block of tokens, a head, a sample.
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
    x, d_rotated, d_x, cosines, sines, d_cosines, d_sines, batch, first, head, length, heads,
    ROWS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Stores the gradient of one head, and adds that of its rotation unless x is None."""
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
    q, k, initial, delta, d_rotated_q, d_rotated_k, d_state, d_q, d_k, d_delta, length, heads,
    GROUP: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """d_q, d_k = gradients * conj e, and, unless delta is None, d_delta = d_state + sum of a channel's gradients * conj (q, k).

    Shapes as in rotate_kernel; d_state: None counts as zero. Program: a block of tokens, a channel, a sample.
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
