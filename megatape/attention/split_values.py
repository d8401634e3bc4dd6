"""Attention over content and position state by kernels that limit the width of values.

Shapes as in model/transformer.py.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Largest width of values for which PyTorch's kernels have a backward pass. Beyond it, cuDNN takes the forward pass and has no
# backward pass, and the tiles of flex_attention need more shared memory than a GPU has.
MAX_VALUE_WIDTH = 128


def attend_v_and_e(
    v: Tensor,
    e: Tensor | None,
    attend: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor | None]:
    """Compute A v and A e in as few calls as the kernels allow. Every call computes the scores again.

    If [v | e] is not wider than MAX_VALUE_WIDTH, a single call computes both. Otherwise one call computes A v, and one call
    each computes the parts of A e, which are not wider than MAX_VALUE_WIDTH or v.

    Args:
        v: Values [B, N, L, R].
        e: Position tensor [B, N, L, W], or None.
        attend: Function that computes A values [B, N, H, width] from values [B, N, L, width].

    Returns:
        A v [B, N, H, R], and A e [B, N, H, W] or None.
    """
    if e is None:
        return attend(v), None
    width = v.shape[-1]
    if width + e.shape[-1] <= MAX_VALUE_WIDTH:
        both = attend(torch.cat([v, e], dim=-1))
        return both[..., :width], both[..., width:]
    part_width = max(width, MAX_VALUE_WIDTH)
    state_parts = [attend(part) for part in e.split(part_width, dim=-1)]
    content = attend(v)
    if len(state_parts) == 1:
        return content, state_parts[0]
    return content, torch.cat(state_parts, dim=-1)
