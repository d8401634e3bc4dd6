"""Backends that rotate queries and keys before attention, by our own Triton kernels where they can, or by PyTorch's operators.

Shapes as in model/transformer.py.
"""

import torch
from torch import Tensor

from megatape.attention.backend import Backend
from megatape.attention.rotation import PositionState, rotate_back, rotate_qk, state_gradient
from megatape.nn.kernels.launch import has_kernels


class RotatingBackend(Backend):
    """Base class of backends rotating queries and keys before attention.

    Args:
        rotation_by_kernel: Whether our own Triton kernels rotate them, where they can.
        deterministic: Whether the same inputs must give the same gradients, bit for bit, for backends with a choice.
    """

    def __init__(self, rotation_by_kernel: bool = False, deterministic: bool = False) -> None:
        self.rotation_by_kernel = rotation_by_kernel
        self.deterministic = deterministic


def rotated_heads(
    q: Tensor,
    k: Tensor,
    state: PositionState | None,
    averages_state: bool,
    by_kernel: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rotate queries and keys by e.

    Args:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        state: State with e, or None to rotate nothing.
        averages_state: Whether to average e with the same weights as the values.
        by_kernel: Whether to use our Triton kernels if the device has them and W = R.

    Returns:
        Rotated queries and keys, and e as a value in their dtype, [B, N, L, W], or None if attention does not move it.
    """
    if state is None:
        return q, k, None
    if by_kernel and _has_kernel(q, state):
        from megatape.attention.kernels.rotation import KernelRotation

        return KernelRotation.apply(q, k, *state, averages_state)
    e = state.tensor(k.shape[2]).to(k.dtype) if averages_state else None
    rotated_q, rotated_k = rotate_qk(q, k, state)
    return rotated_q, rotated_k, e


def rotation_gradients(
    q: Tensor,
    k: Tensor,
    state: PositionState,
    d_rotated_q: Tensor,
    d_rotated_k: Tensor,
    d_e: Tensor | None,
    by_kernel: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute gradients of `rotated_heads`, for operators whose backward pass calls it again.

    Args:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        state: State with e.
        d_rotated_q: Gradient of the rotated queries.
        d_rotated_k: Gradient of the rotated keys.
        d_e: Gradient of e as a value, [B, N, L, W], or None if attention does not average it.
        by_kernel: Whether to use our Triton kernels, as in `rotated_heads`.

    Returns:
        Gradients of q, k and the state's delta, in their dtypes. The last one is None without a delta.
    """
    if by_kernel and _has_kernel(q, state):
        from megatape.attention.kernels.rotation import rotate_backward

        initial, delta = state
        assert initial is not None
        return rotate_backward(q, k, initial, delta, d_rotated_q, d_rotated_k, d_e)
    e = state.compact
    grads = (d_rotated_q, d_rotated_k)
    d_q, d_k = rotate_back(grads, e)
    d_delta = None
    if state.delta is not None:
        d_delta = state_gradient(grads, (q, k), e)
        if d_e is not None:
            d_delta = d_delta + d_e
        d_delta = d_delta.to(state.delta.dtype)
    return d_q.to(q.dtype), d_k.to(k.dtype), d_delta


def rotated_with_values(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: PositionState | None,
    averages_state: bool,
    by_kernel: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate queries and keys by e, and write values and e side by side if attention averages e.

    Args:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        v: Values [B, N, L, R].
        state: State with e, or None to rotate nothing.
        averages_state: Whether to average e with the same weights as the values.
        by_kernel: Whether to use our Triton kernels, as in `rotated_heads`.

    Returns:
        Rotated queries and keys, and v or [v | e], [B, N, L, R + W].
    """
    if averages_state and state is not None and by_kernel and _has_kernel(q, state):
        from megatape.attention.kernels import rotation

        initial, delta = state
        assert initial is not None
        rotated_k, values = rotation.rotated_with_values(k, v, initial, delta)
        return rotation.rotated_queries(q, k, initial, delta), rotated_k, values
    rotated_q, rotated_k, e = rotated_heads(q, k, state, averages_state, by_kernel)
    if e is None:
        return rotated_q, rotated_k, v
    return rotated_q, rotated_k, torch.cat([v, e], dim=-1)


def gradients_with_values(
    q: Tensor,
    k: Tensor,
    state: PositionState,
    d_rotated_q: Tensor,
    d_rotated_k: Tensor,
    d_values: Tensor,
    by_kernel: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Compute gradients of `rotated_with_values` if attention averages e.

    Args:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        state: State with e.
        d_rotated_q: Gradient of the rotated queries.
        d_rotated_k: Gradient of the rotated keys.
        d_values: Gradient of [v | e], [B, N, L, R + W].
        by_kernel: Whether to use our Triton kernels, as in `rotated_heads`.

    Returns:
        Gradients of q, k, v and the state's delta. The last one is None without a delta.
    """
    if by_kernel and _has_kernel(q, state):
        from megatape.attention.kernels.rotation import rotate_backward

        initial, delta = state
        assert initial is not None
        d_v = torch.empty_like(k)
        d_q, d_k, d_delta = rotate_backward(q, k, initial, delta, d_rotated_q, d_rotated_k, None, d_values=d_values, d_v=d_v)
        return d_q, d_k, d_v, d_delta
    head_dim = q.shape[-1]
    d_v, d_e = d_values.split([d_values.shape[-1] - head_dim, head_dim], dim=-1)
    d_q, d_k, d_delta = rotation_gradients(q, k, state, d_rotated_q, d_rotated_k, d_e, by_kernel)
    return d_q, d_k, d_v.contiguous(), d_delta


def _has_kernel(q: Tensor, state: PositionState) -> bool:
    """Whether our Triton kernels can rotate heads by a state."""
    assert state.initial is not None
    return state.initial.shape[-1] == q.shape[-1] and has_kernels(q.device)
