"""Rotation of queries and keys before attention: by our own Triton kernels on a GPU, elsewhere by PyTorch's operators.

Shapes as in model/transformer.py.
"""

import logging
from functools import cache

import torch
from torch import Tensor

from megatape.attention.rotation import PositionState, rotate_qk
from megatape.nn.kernels.launch import has_kernels

LOG = logging.getLogger(__name__)


def rotated_heads(
    q: Tensor,
    k: Tensor,
    state: PositionState | None,
    moves_state: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rotate queries and keys by e.

    Args:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        state: State with e, or None to rotate nothing.
        moves_state: Whether attention moves the state.

    Returns:
        Rotated queries and keys, and e [B, N, L, W] as a value in their dtype, or None if attention does not move it.
    """
    if state is None:
        return q, k, None
    initial, delta = state
    assert initial is not None
    if initial.shape[-1] == q.shape[-1] and _has_kernel(q.device):
        from megatape.attention.kernels.rotation import Rotation

        return Rotation.apply(q, k, initial, delta, moves_state)
    e = None
    if moves_state:
        e = state.tensor(k.shape[2]).to(k.dtype)
    rotated_q, rotated_k = rotate_qk(q, k, state)
    return rotated_q, rotated_k, e


@cache
def _has_kernel(device: torch.device) -> bool:
    """Whether the kernels run on the device. On a GPU they are tried; on the meta device they compute nothing."""
    if not has_kernels(device):
        return False
    if device.type != "cuda":
        return True
    from megatape.attention.kernels.rotation import Rotation

    try:
        with torch.inference_mode(False), torch.enable_grad():
            x = torch.ones(1, 1, 1, 16, device=device, requires_grad=True)
            rotated_q, _, _ = Rotation.apply(x, x, x.detach(), x, True)
            rotated_q.sum().backward()
    # Triton, its compiler and the driver raise exceptions of many types.
    except Exception:
        LOG.warning("rotation by PyTorch instead of our kernels, which fail here:", exc_info=True)
        return False
    return True
