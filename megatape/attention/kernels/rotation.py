"""Rotation of queries and keys by the position tensor in one pass over memory, before kernels that read them repeatedly.

attention/rotation.py does the same in plain PyTorch. Shapes as in model/transformer.py.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.attention.kernels.rotation_kernels import rotate_backward_kernel, rotate_kernel
from megatape.attention.kernels.tiles import width
from megatape.nn.kernels.launch import launch
from megatape.utils.pytorch.operators import drop_nones, empty_copies, operator, restore_nones

# Tokens and warps per program.
ROWS = 64
WARPS = 4


class KernelRotation(torch.autograd.Function):
    """Queries [B, N, H, R] and keys [B, N, L, R] times e, and e [B, N, L, R] as a value if `averages_state`.

    The results have the dtype of queries and keys. initial is float32 [B, N, 1, R], delta is [B, N, L, R] or None. The backward
    pass keeps both. With a delta, whose gradient needs them, it keeps queries and keys as well.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, initial: Tensor, delta: Tensor | None, averages_state: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        q = q.contiguous()
        k = k.contiguous()
        initial = initial.expand(len(q), -1, -1, -1).contiguous()
        if delta is None:
            ctx.save_for_backward(None, None, initial, None)
        else:
            delta = delta.contiguous()
            ctx.save_for_backward(q, k, initial, delta)
        results = _forward(q, k, initial, delta, averages_state)
        rotated_q, rotated_k, e = restore_nones(results, True, True, averages_state)
        if e is not None:
            e = e.expand_as(k)
        return rotated_q, rotated_k, e

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        d_rotated_q: Tensor,
        d_rotated_k: Tensor,
        d_state: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        q, k, initial, delta = ctx.saved_tensors
        results = _backward(q, k, initial, delta, d_rotated_q, d_rotated_k, d_state)
        d_q, d_k, d_delta = restore_nones(results, True, True, delta is not None)
        return d_q, d_k, None, d_delta, None


def _forward_shapes(q: Tensor, k: Tensor, initial: Tensor, delta: Tensor | None, averages_state: bool) -> list[Tensor]:
    outputs = empty_copies(q, k)
    if averages_state:
        e = initial if delta is None else delta
        outputs.append(torch.empty_like(e, dtype=k.dtype))
    return outputs


@operator("rotate_forward", _forward_shapes)
def _forward(q: Tensor, k: Tensor, initial: Tensor, delta: Tensor | None, averages_state: bool) -> list[Tensor]:
    """Return rotated queries and keys, and e with `averages_state`, see rotated_with_state. All arguments are contiguous."""
    rotated_k, e = rotated_with_state(k, initial, delta, averages_state)
    return drop_nones(rotated(q, k, initial, delta), rotated_k, e)


def _backward_shapes(
    q: Any, k: Any, initial: Any, delta: Tensor | None, d_rotated_q: Tensor, d_rotated_k: Tensor, d_state: Any
) -> list[Tensor]:
    return empty_copies(d_rotated_q, d_rotated_k, delta)


@operator("rotate_backward", _backward_shapes)
def _backward(
    q: Tensor | None,
    k: Tensor | None,
    initial: Tensor,
    delta: Tensor | None,
    d_rotated_q: Tensor,
    d_rotated_k: Tensor,
    d_state: Tensor | None,
) -> list[Tensor]:
    """Return the gradients of q, k, and of delta if there is one, see `rotate_backward`."""
    return drop_nones(*rotate_backward(q, k, initial, delta, d_rotated_q, d_rotated_k, d_state))


def rotate_backward(
    q: Tensor | None,
    k: Tensor | None,
    initial: Tensor,
    delta: Tensor | None,
    d_rotated_q: Tensor,
    d_rotated_k: Tensor,
    d_state: Tensor | None,
    *,
    d_values: Tensor | None = None,
    d_v: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute gradients of the rotation.

    Args:
        q: Queries [B, N, H, R], or None without a delta.
        k: Keys [B, N, L, R], or None without a delta.
        initial: First term of e, [B, N, 1, R].
        delta: Second term of e, [B, N, L, R], or None.
        d_rotated_q: Gradient of the rotated queries.
        d_rotated_k: Gradient of the rotated keys.
        d_state: Gradient of e as a value, [B, N, L, R], or None.
        d_values: Gradient of [v | e] in place of d_state, [B, N, L, 2R], or None.
        d_v: Tensor [B, N, L, R] to write the gradient of v to, with d_values.

    Returns:
        Gradients of queries, keys and delta. The last one is None without a delta.
    """
    initial = initial.expand(len(d_rotated_q), -1, -1, -1).contiguous()
    d_rotated_q = d_rotated_q.contiguous()
    d_rotated_k = d_rotated_k.contiguous()
    d_q = torch.empty_like(d_rotated_q)
    d_k = torch.empty_like(d_rotated_k)
    d_delta = None
    if delta is None:
        # Only the gradient of delta needs them.
        q = None
        k = None
        d_state = None
    else:
        delta = delta.contiguous()
        d_delta = torch.empty_like(delta)
        if d_state is not None:
            d_state = d_state.contiguous()
    if d_values is not None:
        d_values = d_values.contiguous()
    _launch(
        rotate_backward_kernel,
        d_rotated_q,
        d_rotated_k,
        d_rotated_k.shape[2],
        # Inputs
        q=q,
        k=k,
        initial=initial,
        delta=delta,
        d_rotated_q=d_rotated_q,
        d_rotated_k=d_rotated_k,
        d_state=d_state,
        d_values=d_values,
        # Outputs
        d_q=d_q,
        d_k=d_k,
        d_v=d_v,
        d_delta=d_delta,
    )
    return d_q, d_k, d_delta


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
    _launch(
        rotate_kernel,
        x,
        k,
        x.shape[2],
        # Inputs
        x=x,
        v=None,
        initial=initial,
        delta=delta,
        # Outputs
        rotated=product,
        state=state,
        values=None,
    )
    return product


def rotated_queries(q: Tensor, k: Tensor, initial: Tensor, delta: Tensor | None) -> Tensor:
    """Rotate queries by e, see `rotated` for the arguments. An initial state may be shared by all samples."""
    initial = initial.expand(len(q), -1, -1, -1).contiguous()
    if delta is not None:
        delta = delta.contiguous()
    return rotated(q, k, initial, delta)


def rotated_with_values(k: Tensor, v: Tensor, initial: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rotate keys by e, and write values and e side by side.

    Args:
        k: Keys [B, N, L, R].
        v: Values [B, N, L, R].
        initial: First term of e, [B or 1, N, 1, R].
        delta: Second term of e, [B, N, L, R], or None.

    Returns:
        Rotated keys [B, N, L, R], and [v | e] [B, N, L, 2R], in the dtype of k.
    """
    initial = initial.expand(len(k), -1, -1, -1).contiguous()
    if delta is not None:
        delta = delta.contiguous()
    product = torch.empty_like(k)
    values = k.new_empty(*k.shape[:-1], 2 * k.shape[-1])
    _launch(
        rotate_kernel,
        k,
        k,
        k.shape[2],
        # Inputs
        x=k,
        v=v,
        initial=initial,
        delta=delta,
        # Outputs
        rotated=product,
        state=None,
        values=values,
    )
    return product, values


def rotated_with_state(
    k: Tensor,
    initial: Tensor,
    delta: Tensor | None,
    averages_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Rotate keys by e, and return e as a value if `averages_state`: [B, N, 1, R] without a delta, or [B, N, L, R]."""
    if not averages_state:
        return rotated(k, k, initial, delta), None
    if delta is None:
        # A copy also in float32: results of an operator share no memory with its arguments.
        return rotated(k, k, initial, delta), initial.to(k.dtype, copy=True)
    e = torch.empty_like(k)
    return rotated(k, k, initial, delta, e), e


def _launch(kernel: Any, q: Tensor, k: Tensor, num_programs: int, /, **tensors: Tensor | None) -> None:
    """Run a kernel on all token blocks.

    Args:
        kernel: Kernel to run.
        q: Tensor with the heads that it rotates.
        k: Tensor with the channels of e.
        num_programs: Number of programs for each token block: one per head, or one per channel.
        tensors: Its tensors, by the names of its arguments.
    """
    batch, length, heads, size = q.shape
    sizes: dict[str, Any] = {
        "length": length,
        "heads": heads,
        "GROUP": heads // k.shape[2],
        "SIZE": size,
        "WIDTH": width(size),
        "ROWS": ROWS,
    }
    grid = (triton.cdiv(length, ROWS), num_programs, batch)
    launch(kernel, grid, 0, WARPS, 1, tensors | sizes)
