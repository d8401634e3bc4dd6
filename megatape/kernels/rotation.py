"""Rotation of heads by the position tensor, and its gradient. Shapes as in model/position.py."""

import torch
from torch import Tensor


def rotate(x: Tensor, e: Tensor) -> Tensor:
    """Multiply the planes of heads by those of the position tensor as complex numbers, (x1 + i x2)(c + i s).

    x: [B, N, H, R] queries or keys; e: [B, N, L, R] with H a multiple of L: heads l H/L .. (l + 1) H/L - 1 share channel l.
    Returns [B, N, H, R] in the wider dtype of the two."""
    x1, x2, c, s = _planes(x, e)
    return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], dim=-1).flatten(2, 3)


def rotate_backward(grad: Tensor, x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `rotate` with respect to x [B, N, H, R] and e [B, N, L, R] (summed over the heads of a group)."""
    g1, g2, c, s = _planes(grad, e)
    x1, x2, _, _ = _planes(x, e)
    d_x = torch.cat([g1 * c + g2 * s, g2 * c - g1 * s], dim=-1).flatten(2, 3)
    d_e = torch.cat([(g1 * x1 + g2 * x2).sum(3), (g2 * x1 - g1 * x2).sum(3)], dim=-1)
    return d_x, d_e


def _planes(x: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(x1, x2) [B, N, L, H/L, R/2] and (c, s) [B, N, L, 1, R/2]."""
    x1, x2 = x.unflatten(2, (e.shape[2], -1)).chunk(2, dim=-1)
    c, s = e[:, :, :, None].chunk(2, dim=-1)
    return x1, x2, c, s
