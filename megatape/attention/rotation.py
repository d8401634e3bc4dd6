"""Rotation of heads by the position tensor, and its gradient. Shapes as in model/transformer.py.

A position tensor has width W = R, (cos | sin) of R/2 planes, or W = 2R, (cos, cos' | sin, sin'): then each
of the two rows of a plane's rotation has its own cosine and sine, which the ablations that mix planes need.
"""

import torch
from torch import Tensor


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
