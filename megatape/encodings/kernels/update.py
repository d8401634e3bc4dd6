"""Triton kernels of TAPE's update: one pass over the position tensor's memory forward, one backward.

The plain counterpart is TapeUpdate in encodings/tape.py.

For each token, let e = e0 + D be its state, U = A e, a = silu(W_x m), and E = e0 + D + g U the state after attention's update.

Forward:

    Y = W_up E
    Z = diag(a) Y
    D' = E - e0 + W_down Z

Backward:

    dZ = W_down^T dD'                          da = row sums of dZ * Y
    dY = diag(a) dZ                            dW_down = sum over tokens of dD' Z^T
    dE = dD' + W_up^T dY = dD                  dW_up = sum over tokens of dY E^T
    dU_h = g_h dE_l                            dg_h = sum of dE_l * U_h

The plain update first multiplies W_down diag(a) W_up, which takes less arithmetic. But memory traffic limits the kernels'
speed, and this order needs no L x L matrix for each token. Shapes as in encodings/tape.py.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.nn.kernels.launch import Kernel, launch

# Precision of float32 products
PRECISION = tl.constexpr("tf32x3")
# Number of programs. Each computes every 792nd token, and sums the weights' gradients over its tokens. An H100 has 132
# multiprocessors running one, two or three programs at a time, so each of them gets six (docs/kernels.md).
PROGRAMS = 792
# Smallest size in a matrix product
MIN_SIZE = 16
# Largest number of elements in a token's state for which programs have few warps
SMALL_STATE = 16 * 128


class _Update(torch.autograd.Function):
    """Delta D' of the position tensor after both updates in a layer, [B, N, L, R] in the dtype of `active`.

    Args:
        initial: e0, float32 [B, N, 1, R].
        delta: D [B, N, L, R], or None.
        attended: U = A e [B, N, H, R], or None if attention does not move the state.
        gain: g [H], or None.
        active: a [B, N, I].
        up: W_up [I, L].
        down: W_down [L, I].
    """

    @staticmethod
    def forward(
        ctx: Any,
        initial: Tensor,
        delta: Tensor | None,
        attended: Tensor | None,
        gain: Tensor | None,
        active: Tensor,
        up: Tensor,
        down: Tensor,
    ) -> Tensor:
        initial = initial.contiguous()
        active = active.contiguous()
        if delta is not None:
            delta = delta.contiguous()
        if attended is not None:
            attended = attended.contiguous()
        batch, length, _ = active.shape
        out = active.new_empty(batch, length, down.shape[0], initial.shape[-1])
        _run(
            update_kernel,
            _sizes(initial, attended, active, down),
            # Inputs
            initial=initial,
            delta=delta,
            attended=attended,
            gain=gain,
            active=active,
            up=up,
            down=down,
            # Output
            out=out,
        )
        ctx.save_for_backward(initial, delta, attended, gain, active, up, down)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        initial, delta, attended, gain, active, up, down = ctx.saved_tensors
        d_out = d_out.contiguous()
        d_delta = None if delta is None else torch.empty_like(delta)
        d_attended = None if attended is None else torch.empty_like(attended)
        d_active = torch.empty_like(active)
        # Each program's gradients of all weights are in one row, so that a single kernel sums them.
        gain_size = 0
        if gain is not None:
            gain_size = gain.numel()
        sizes = [gain_size, up.numel(), down.numel()]
        parts = initial.new_empty(PROGRAMS, sum(sizes))
        d_gain_parts, d_up_parts, d_down_parts = parts.split(sizes, 1)
        _run(
            update_backward_kernel,
            {**_sizes(initial, attended, active, down), "PARTS": parts.shape[1]},
            # Inputs
            initial=initial,
            delta=delta,
            attended=attended,
            gain=gain,
            active=active,
            up=up,
            down=down,
            d_out=d_out,
            # Outputs
            d_delta=d_delta,
            d_attended=d_attended,
            d_gain=d_gain_parts,
            d_active=d_active,
            d_up=d_up_parts,
            d_down=d_down_parts,
        )
        d_gain, d_up, d_down = parts.sum(0).to(up.dtype).split(sizes)
        if gain is None:
            d_gain = None
        return None, d_delta, d_attended, d_gain, d_active, d_up.view_as(up), d_down.view_as(down)


fused_update = _Update.apply


def _sizes(initial: Tensor, attended: Tensor | None, active: Tensor, down: Tensor) -> dict[str, int]:
    """Return the sizes among both kernels' arguments. Names ending in _P are padded sizes."""
    batch, length, _ = active.shape
    channels, inner = down.shape
    size = initial.shape[-1]
    group = 1
    if attended is not None:
        group = attended.shape[2] // channels
    return {
        "tokens": batch * length,
        "GROUP": group,
        "GROUP_P": triton.next_power_of_2(group),
        "CHANNELS": channels,
        "INNER": inner,
        "SIZE": size,
        "CHANNELS_P": _padded(channels),
        "INNER_P": _padded(inner),
        "SIZE_P": _padded(size),
    }


def _padded(size: int) -> int:
    return max(MIN_SIZE, triton.next_power_of_2(size))


def num_warps(kernel: Kernel, channels: int, size: int) -> int:
    """Return the number of warps per program.

    With few warps, several programs share a multiprocessor. A large state per token needs more (docs/kernels.md).

    Args:
        kernel: One of the two kernels.
        channels: Number of channels, padded.
        size: Elements per channel, padded.
    """
    is_small = channels * size <= SMALL_STATE
    if kernel is update_kernel:
        return 1 if is_small else 4
    return 4 if is_small else 8


def _run(kernel: Kernel, sizes: Mapping[str, int], **tensors: Tensor | None) -> None:
    """Run a kernel with sizes from `_sizes`."""
    # Padding is multiplied as well.
    product_sizes = [sizes[size] for size in ("tokens", "CHANNELS_P", "INNER_P", "SIZE_P")]
    flops = 2 * PRODUCTS[kernel] * math.prod(product_sizes)
    warps = num_warps(kernel, sizes["CHANNELS_P"], sizes["SIZE_P"])
    launch(kernel, (PROGRAMS,), flops, warps, 1, {**tensors, **sizes})


@triton.jit
def _load_weight(
    x,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS_P: tl.constexpr,
    COLUMNS_P: tl.constexpr,
):
    """Load a weight [ROWS, COLUMNS], padded with zeros."""
    rows = tl.arange(0, ROWS_P)[:, None]
    columns = tl.arange(0, COLUMNS_P)[None, :]
    return tl.load(x + rows * COLUMNS + columns, mask=(rows < ROWS) & (columns < COLUMNS), other=0.0)


@triton.jit
def _store_weight(
    x,
    values,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS_P: tl.constexpr,
    COLUMNS_P: tl.constexpr,
):
    """Store this program's part of x [PROGRAMS, ROWS, COLUMNS]. Parts of programs are PARTS elements apart."""
    rows = tl.arange(0, ROWS_P)[:, None]
    columns = tl.arange(0, COLUMNS_P)[None, :]
    start = tl.program_id(0).to(tl.int64) * PARTS
    tl.store(x + start + rows * COLUMNS + columns, values, mask=(rows < ROWS) & (columns < COLUMNS))


@triton.jit
def _locate(
    x,
    token,
    member,
    HEADS_OF_CHANNEL: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    CHANNELS_P: tl.constexpr,
    SIZE_P: tl.constexpr,
):
    """Return pointers to one head of each channel of a token, and whether they exist, both [CHANNELS_P, SIZE_P]."""
    channel = tl.arange(0, CHANNELS_P)[:, None]
    element = tl.arange(0, SIZE_P)[None, :]
    start = token * (CHANNELS * HEADS_OF_CHANNEL * SIZE) + member * SIZE
    return x + start + (channel * (HEADS_OF_CHANNEL * SIZE) + element), (channel < CHANNELS) & (element < SIZE)


@triton.jit
def _before_mixing(
    initial,
    delta,
    attended,
    gain,
    token,
    GROUP: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    CHANNELS_P: tl.constexpr,
    SIZE_P: tl.constexpr,
):
    """Return E and E - e0 of a token, both float32 [CHANNELS_P, SIZE_P]."""
    added = tl.zeros((CHANNELS_P, SIZE_P), tl.float32)
    element = tl.arange(0, SIZE_P)
    if delta is not None:
        pointers, exist = _locate(delta, token, 0, 1, CHANNELS, SIZE, CHANNELS_P, SIZE_P)
        added += tl.load(pointers, mask=exist, other=0.0).to(tl.float32)
    if attended is not None:
        channel = tl.arange(0, CHANNELS_P)
        for member in tl.static_range(GROUP):
            gains = tl.load(gain + channel * GROUP + member, mask=channel < CHANNELS, other=0.0).to(tl.float32)
            pointers, exist = _locate(attended, token, member, GROUP, CHANNELS, SIZE, CHANNELS_P, SIZE_P)
            added += gains[:, None] * tl.load(pointers, mask=exist, other=0.0).to(tl.float32)
    angles = tl.load(initial + token * SIZE + element, mask=element < SIZE, other=0.0)
    real = (tl.arange(0, CHANNELS_P) < CHANNELS)[:, None]
    return tl.where(real, angles[None, :] + added, 0.0), added


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
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    CHANNELS_P: tl.constexpr,
    INNER_P: tl.constexpr,
    SIZE_P: tl.constexpr,
):
    """Compute out = D'. Each program handles every PROGRAMS-th token."""
    ups = _load_weight(up, INNER, CHANNELS, INNER_P, CHANNELS_P)
    downs = _load_weight(down, CHANNELS, INNER, CHANNELS_P, INNER_P)
    inner = tl.arange(0, INNER_P)
    for step in range(tl.cdiv(tokens - tl.program_id(0), tl.num_programs(0))):
        token = tl.program_id(0).to(tl.int64) + step * tl.num_programs(0)
        state, added = _before_mixing(initial, delta, attended, gain, token, GROUP, CHANNELS, SIZE, CHANNELS_P, SIZE_P)
        gates = tl.load(active + token * INNER + inner, mask=inner < INNER, other=0.0).to(tl.float32)

        # Z = diag(a) W_up E, [INNER_P, SIZE_P]
        mixed = tl.dot(ups, state.to(ups.dtype), input_precision=PRECISION) * gates[:, None]

        # D' = E - e0 + W_down Z, [CHANNELS_P, SIZE_P]
        added = tl.dot(downs, mixed.to(downs.dtype), added, input_precision=PRECISION)
        pointers, exist = _locate(out, token, 0, 1, CHANNELS, SIZE, CHANNELS_P, SIZE_P)
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
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    CHANNELS_P: tl.constexpr,
    INNER_P: tl.constexpr,
    SIZE_P: tl.constexpr,
):
    """Compute all gradients. Each program handles every PROGRAMS-th token.

    A program sums the weights' gradients over its tokens, and stores them in its row of a float32 tensor [PROGRAMS, PARTS].
    """
    ups = _load_weight(up, INNER, CHANNELS, INNER_P, CHANNELS_P)
    downs = _load_weight(down, CHANNELS, INNER, CHANNELS_P, INNER_P)
    inner = tl.arange(0, INNER_P)
    channel = tl.arange(0, CHANNELS_P)
    members = tl.arange(0, GROUP_P)
    d_ups = tl.zeros((INNER_P, CHANNELS_P), tl.float32)
    d_downs = tl.zeros((CHANNELS_P, INNER_P), tl.float32)
    d_gains = tl.zeros((CHANNELS_P, GROUP_P), tl.float32)
    for step in range(tl.cdiv(tokens - tl.program_id(0), tl.num_programs(0))):
        token = tl.program_id(0).to(tl.int64) + step * tl.num_programs(0)
        state, _ = _before_mixing(initial, delta, attended, gain, token, GROUP, CHANNELS, SIZE, CHANNELS_P, SIZE_P)
        state = state.to(ups.dtype)
        pointers, exist = _locate(d_out, token, 0, 1, CHANNELS, SIZE, CHANNELS_P, SIZE_P)
        d_outs = tl.load(pointers, mask=exist, other=0.0)
        gates = tl.load(active + token * INNER + inner, mask=inner < INNER, other=0.0).to(tl.float32)

        # Y and dZ, [INNER_P, SIZE_P]
        raised = tl.dot(ups, state, input_precision=PRECISION)
        d_mixed = tl.dot(tl.trans(downs), d_outs.to(downs.dtype), input_precision=PRECISION)

        # da, [INNER_P]
        d_gates = tl.sum(d_mixed * raised, 1)
        tl.store(d_active + token * INNER + inner, d_gates.to(d_active.dtype.element_ty), mask=inner < INNER)

        # Z and dY, [INNER_P, SIZE_P], and the gradients of the weights
        mixed = (raised * gates[:, None]).to(ups.dtype)
        d_raised = (d_mixed * gates[:, None]).to(ups.dtype)
        d_downs = tl.dot(d_outs.to(downs.dtype), tl.trans(mixed), d_downs, input_precision=PRECISION)
        d_ups = tl.dot(d_raised, tl.trans(state), d_ups, input_precision=PRECISION)

        # dE = dD, [CHANNELS_P, SIZE_P]
        d_state = tl.dot(tl.trans(ups), d_raised, d_outs.to(tl.float32), input_precision=PRECISION)
        if delta is not None:
            pointers, _ = _locate(d_delta, token, 0, 1, CHANNELS, SIZE, CHANNELS_P, SIZE_P)
            tl.store(pointers, d_state.to(d_delta.dtype.element_ty), mask=exist)

        # dU and dg, one query head of each channel at a time
        if attended is not None:
            for member in tl.static_range(GROUP):
                gains = tl.load(gain + channel * GROUP + member, mask=channel < CHANNELS, other=0.0).to(tl.float32)
                pointers, _ = _locate(attended, token, member, GROUP, CHANNELS, SIZE, CHANNELS_P, SIZE_P)
                values = tl.load(pointers, mask=exist, other=0.0).to(tl.float32)
                pointers, _ = _locate(d_attended, token, member, GROUP, CHANNELS, SIZE, CHANNELS_P, SIZE_P)
                tl.store(pointers, (gains[:, None] * d_state).to(d_attended.dtype.element_ty), mask=exist)
                d_gains += tl.where(members[None, :] == member, tl.sum(values * d_state, 1)[:, None], 0.0)
    _store_weight(d_up, d_ups, PARTS, INNER, CHANNELS, INNER_P, CHANNELS_P)
    _store_weight(d_down, d_downs, PARTS, CHANNELS, INNER, CHANNELS_P, INNER_P)
    if attended is not None:
        _store_weight(d_gain, d_gains, PARTS, CHANNELS, GROUP, CHANNELS_P, GROUP_P)


# Number of matrix products per token, each as large as W_up E: [I, L] times [L, R]
PRODUCTS = {update_kernel: 2, update_backward_kernel: 5}
