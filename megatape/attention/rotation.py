"""Rotation of heads by the position tensor, and its gradient. Shapes as in model/transformer.py.

A position tensor has width W = R, (cos | sin) of R/2 planes, or W = 2R, (cos, cos' | sin, sin'): then each
of the two rows of a plane's rotation has its own cosine and sine, which the ablations that mix planes need.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def whole_state(initial: Tensor, moved: Tensor | None, num_channels: int) -> Tensor:
    """The position tensor e [B, N, L, W], float32, of L channels.

    initial: float32 [B, N, 1, W], a function of the positions alone. moved: [B, N, L, W], what layers have added to it, in the
    compute precision; None: nothing yet."""
    return initial.expand(-1, -1, num_channels, -1) if moved is None else initial + moved


def rotated(q: Tensor, k: Tensor, initial: Tensor, moved: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries [B, N, H, R] and keys [B, N, L, R] rotated by e, in their own dtype.

    initial, moved: as `whole_state` takes them."""
    if moved is None:  # a constant, for whose gradient nothing is kept
        return rotate(q, initial).to(q.dtype), rotate(k, initial).to(k.dtype)
    q, k, _ = rotate_by_state(q, k, initial, moved)
    return q, k


def rotate_by_state(q: Tensor, k: Tensor, initial: Tensor, moved: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [B, N, H, R] and keys [B, N, L, R] rotated by e, and e itself, in the dtype of q and k.

    initial, moved: as `whole_state` takes them. They are kept for the backward pass, and e, which is larger, is not."""
    rotated: tuple[Tensor, Tensor, Tensor] = _RotationByState.apply(q, k, initial, moved)
    return rotated


class _RotationByState(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, initial: Tensor, moved: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(q, k, initial, moved)
        e = whole_state(initial, moved, k.shape[2])
        return rotate(q, e).to(q.dtype), rotate(k, e).to(k.dtype), e.to(k.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_q: Tensor, d_k: Tensor, d_e: Tensor) -> tuple[Tensor | None, ...]:
        q, k, initial, moved = ctx.saved_tensors
        e = whole_state(initial, moved, k.shape[2])
        d_q, from_queries = rotate_backward(d_q.float(), q.float(), e)
        d_k, from_keys = rotate_backward(d_k.float(), k.float(), e)
        d_moved = None if moved is None else (d_e + from_queries + from_keys).to(moved.dtype)
        return d_q.to(q.dtype), d_k.to(k.dtype), None, d_moved


def rotate(x: Tensor, e: Tensor) -> Tensor:
    """Multiply the planes of each head by those of the position tensor as complex numbers, (x1 + i x2)(c + i s).

    x: [B, N, H, R] queries or keys; e: [B, N, L, W], where H is a multiple of L and heads l H/L .. (l + 1) H/L - 1
    share channel l. With W = 2R: (x1 c - x2 s, x2 c' + x1 s'). Returns [B, N, H, R] in the wider dtype of the two."""
    x1, x2 = _halves(x, e)
    c1, c2, s1, s2 = _planes(x, e)
    return torch.cat([x1 * c1 - x2 * s1, x2 * c2 + x1 * s2], dim=-1).flatten(2, 3)


def rotate_backward(grad: Tensor, x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `rotate` with respect to x [B, N, H, R] and e [B, N, L, W] (summed over the heads of a group)."""
    g1, g2 = _halves(grad, e)
    x1, x2 = _halves(x, e)
    c1, c2, s1, s2 = _planes(x, e)
    d_x = torch.cat([g1 * c1 + g2 * s2, g2 * c2 - g1 * s1], dim=-1).flatten(2, 3)
    if _is_full(x, e):
        d_e = torch.cat([(g1 * x1).sum(3), (g2 * x2).sum(3), -(g1 * x2).sum(3), (g2 * x1).sum(3)], dim=-1)
    else:
        d_e = torch.cat([(g1 * x1 + g2 * x2).sum(3), (g2 * x1 - g1 * x2).sum(3)], dim=-1)
    return d_x, d_e


def _is_full(x: Tensor, e: Tensor) -> bool:
    return e.shape[-1] == 2 * x.shape[-1]


def _halves(x: Tensor, e: Tensor) -> tuple[Tensor, ...]:
    """(x1, x2), each [B, N, L, H/L, R/2]."""
    return x.unflatten(2, (e.shape[2], -1)).chunk(2, dim=-1)


def _planes(x: Tensor, e: Tensor) -> tuple[Tensor, ...]:
    """(c, c', s, s'), each [B, N, L, 1, R/2]."""
    e = e[:, :, :, None]
    if _is_full(x, e):
        return e.chunk(4, dim=-1)
    c, s = e.chunk(2, dim=-1)
    return c, c, s, s
