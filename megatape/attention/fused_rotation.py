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


def rotated_heads(q: Tensor, k: Tensor, state: PositionState | None, move: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries [B, N, H, R] and keys [B, N, L, R] rotated by e, and, if attention is to move it, e itself, in their dtype."""
    if state is None:
        return q, k, None
    initial, delta = state
    assert initial is not None
    if initial.shape[-1] == q.shape[-1] and _has_kernel(q.device):
        from megatape.attention.kernels.rotation import Rotation

        return Rotation.apply(q, k, initial, delta, move)
    e = state.tensor(k.shape[2]).to(k.dtype) if move else None
    return *rotate_qk(q, k, state), e


@cache
def _has_kernel(device: torch.device) -> bool:
    """Whether the kernels run on the device, found out by running them. On shapes alone they compute nothing."""
    if device.type != "cuda" or not has_kernels(device):
        return has_kernels(device)
    from megatape.attention.kernels.rotation import Rotation

    try:
        with torch.inference_mode(False), torch.enable_grad():
            x = torch.ones(1, 1, 1, 16, device=device, requires_grad=True)
            Rotation.apply(x, x, x.detach(), x, True)[0].sum().backward()
    except Exception:  # whatever Triton, its compiler or the driver raises
        LOG.warning("rotation by PyTorch instead of our kernels, which fail here:", exc_info=True)
        return False
    return True
