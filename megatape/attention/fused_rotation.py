"""Rotation of queries and keys before attention, by PyTorch's operators or by our own Triton kernels.

Shapes as in model/transformer.py.
"""

from torch import Tensor

from megatape.attention.backend import Backend
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.nn.kernels.launch import has_kernels


class RotatingBackend(Backend):
    """Base class of backends rotating queries and keys before attention.

    Args:
        rotation_by_kernel: Whether our own Triton kernels rotate them, where they can.
    """

    def __init__(self, rotation_by_kernel: bool = False) -> None:
        self.rotation_by_kernel = rotation_by_kernel


def rotated_heads(
    q: Tensor,
    k: Tensor,
    state: PositionState | None,
    moves_state: bool,
    by_kernel: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rotate queries and keys by e.

    Args:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        state: State with e, or None to rotate nothing.
        moves_state: Whether attention moves the state.
        by_kernel: Whether to use our Triton kernels if the device has them and W = R. A run decides this once for all ranks
            (training/startup/working_kernels.py).

    Returns:
        Rotated queries and keys, and e as a value in their dtype, [B, N, L, W], or None if attention does not move it.
    """
    if state is None:
        return q, k, None
    initial, delta = state
    assert initial is not None
    has_kernel_width = initial.shape[-1] == q.shape[-1]
    if by_kernel and has_kernel_width and has_kernels(q.device):
        from megatape.attention.kernels.rotation import Rotation

        return Rotation.apply(q, k, initial, delta, moves_state)
    e = None
    if moves_state:
        e = state.tensor(k.shape[2]).to(k.dtype)
    rotated_q, rotated_k = rotate_qk(q, k, state)
    return rotated_q, rotated_k, e
