"""Attention over content and position state in calls that limit the width of values. Shapes as in model/transformer.py."""

from collections.abc import Callable

import torch
from torch import Tensor

# Maximum width of values with a backward pass in PyTorch's kernels. For wider ones, cuDNN only has a forward pass, and tiles of
# flex_attention exceed the GPU's shared memory.
MAX_VALUE_WIDTH = 128


def attend_v_and_e(
    v: Tensor,
    e: Tensor | None,
    attend: Callable[[Tensor], Tensor],
    max_width: int = MAX_VALUE_WIDTH,
) -> tuple[Tensor, Tensor | None]:
    """Compute A v and A e in as few calls as possible, because every call computes the scores again.

    If [v | e] is wider than `max_width`, one call computes A v, and others parts of A e.

    Args:
        v: Values [B, N, L, R].
        e: Position tensor [B, N, L, W], or None.
        attend: Function computing A values [B, N, H, width] from values [B, N, L, width].
        max_width: Maximum width of values in a call, unless v itself is wider.

    Returns:
        A v [B, N, H, R], and A e [B, N, H, W] or None.
    """
    if e is None:
        return attend(v), None
    width = v.shape[-1]
    if width + e.shape[-1] <= max_width:
        both = attend(torch.cat([v, e], dim=-1))
        return both[..., :width], both[..., width:]
    part_width = max(width, max_width)
    state_parts = [attend(part) for part in e.split(part_width, dim=-1)]
    content = attend(v)
    if len(state_parts) == 1:
        return content, state_parts[0]
    return content, torch.cat(state_parts, dim=-1)
