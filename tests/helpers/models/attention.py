"""Attention moving the state: inputs, a backend's results and the plain formula."""

import math

import torch
from torch import Tensor

from megatape.attention.attend import get_backend
from megatape.attention.blocked.row_blocks import BLOCK
from megatape.attention.rotation import PositionState
from megatape.attention.split_values import MAX_VALUE_WIDTH
from megatape.attention.windows import visible

# B, N, H, L, R: lengths below, at and above a block's; groups; an odd number of planes
SHAPES = [
    (2, 40, 4, 4, 8),
    (1, BLOCK, 2, 1, 4),
    (2, 2 * BLOCK + 44, 6, 2, 10),
    (3, 1, 2, 2, 2),
    (2, 24, 4, 2, MAX_VALUE_WIDTH),
]


def moving(
    backend: str, q: Tensor, k: Tensor, v: Tensor, initial: Tensor, delta: Tensor | None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A v and A e by a backend."""
    content, attended_state = get_backend(backend, rotation_by_kernel=True).attend(
        q, k, v, PositionState(initial, delta), None, mask, True
    )
    assert attended_state is not None
    return content, attended_state


def inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    batch, length, heads, channels, size = shape
    return widths(batch, length, heads, channels, size, size, dtype)


def widths(
    batch: int, length: int, heads: int, channels: int, size: int, width: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """q, k, v with heads of `size` and what layers have added to e, of `width`."""
    generator = torch.Generator().manual_seed(length)
    return [
        torch.randn(batch, length, count, last, generator=generator).to(dtype).requires_grad_()
        for count, last in ((heads, size), (channels, size), (channels, size), (channels, width))
    ]


def random_document_starts(batch: int, length: int) -> Tensor:
    document_starts = torch.zeros(batch, length, dtype=torch.long)
    for row, step in zip(range(batch), (17, 150, 5), strict=False):
        document_starts[row] = torch.arange(length) // step * step
    return document_starts


def initial_state(e: Tensor) -> Tensor:
    """Return the part of e shared by all channels, without a gradient. Kernels get it separately."""
    return torch.randn(*e.shape[:2], 1, e.shape[3], generator=torch.Generator().manual_seed(0))


def plain(
    q: Tensor, k: Tensor, v: Tensor, e: Tensor, document_starts: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The formula of docs/model.md, one head at a time, with complex numbers.

    `bias` [B, H, N, N] is added to the scores.
    """
    size = q.shape[-1]
    group = q.shape[2] // k.shape[2]
    content = []
    attended_state = []
    for head in range(q.shape[2]):
        channel = head // group
        half = size // 2
        rotate_qk = torch.complex(e[:, :, channel, :half], e[:, :, channel, half:])
        query = torch.complex(q[:, :, head, :half], q[:, :, head, half:]) * rotate_qk
        key = torch.complex(k[:, :, channel, :half], k[:, :, channel, half:]) * rotate_qk
        scores = (query @ key.mH).real / math.sqrt(size)
        if bias is not None:
            scores = scores + bias[:, head]
        weights = scores.masked_fill(~visible(document_starts), -math.inf).softmax(-1)
        content.append(weights @ v[:, :, channel])
        attended_state.append(weights @ e[:, :, channel])
    return torch.stack(content, 2), torch.stack(attended_state, 2)
