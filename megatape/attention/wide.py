"""Attention over [v | e] by kernels for values of a limited width: wide values take several calls."""

from collections.abc import Callable

import torch
from torch import Tensor

from megatape.attention.backend import Sizes

# Width of values up to which PyTorch's kernels have a backward pass: beyond it cuDNN takes the forward pass and has none, and
# the tiles of flex_attention need more shared memory than a GPU has.
WIDEST = 128


def attend_v_and_e(v: Tensor, e: Tensor | None, attend: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
    """A v and, unless e is None, A e by as few calls of `attend`, which computes A values, as its kernels allow.

    One call over [v | e] if that is no wider than WIDEST; else one over v, and one over each part of e that is no wider than
    WIDEST or v. Every call computes the scores again.
    """
    if e is None:
        return attend(v), None
    width = v.shape[-1]
    if width + e.shape[-1] <= WIDEST:
        both = attend(torch.cat([v, e], dim=-1))
        return both[..., :width], both[..., width:]
    parts = [attend(part) for part in e.split(max(width, WIDEST), dim=-1)]
    return attend(v), parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def kept_bytes(sizes: Sizes) -> int:
    """Bytes that autograd keeps beside the operands and outputs of one call.

    A v, which the output matrix needs apart from [A v | A e]; or of further calls a float32 number for each row, and A e, if it
    was put together.
    """
    size, width = sizes.head_dim, sizes.state_width
    numbers, calls = size, 0
    if size + width > WIDEST:
        calls = -(-width // max(size, WIDEST))
        numbers = width if calls > 1 else 0
    return sizes.tokens * sizes.heads * (numbers * sizes.element_bytes + calls * 4)
