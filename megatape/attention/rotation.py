"""Rotation of heads by the position tensor, and its gradient. Shapes as in model/transformer.py.

A position tensor has width W = R, (cos | sin) of R/2 planes, or W = 2R, (cos, cos' | sin, sin'): then each
of the two rows of a plane's rotation has its own cosine and sine, which the ablations that mix planes need.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class PositionState(NamedTuple):
    """The state that an encoding carries beside the content; for rotary encodings the position tensor e = initial + delta.

    Attributes:
        initial: A constant of the positions; of a position tensor [B, N, 1, W] in float32, the same for all channels. None for
            encodings without a state.
        delta: [B, N, L, W] in the compute precision, the sum of the layers' updates; None before the first one.
    """

    initial: Tensor | None
    delta: Tensor | None = None

    @property
    def compact(self) -> Tensor:
        """The position tensor e [B, N, L, W] in float32, with one channel before the first update, where all are the same."""
        assert self.initial is not None
        return self.initial if self.delta is None else self.initial + self.delta

    def tensor(self, num_channels: int) -> Tensor:
        """The position tensor e [B, N, L, W] of L channels, in float32."""
        return self.compact.expand(-1, -1, num_channels, -1)


def rotate_qk(q: Tensor, k: Tensor, state: PositionState | None) -> tuple[Tensor, Tensor]:
    """Queries [B, N, H, R] and keys [B, N, L, R] rotated by e, in their own dtype; unchanged without a state.

    The backward pass keeps the two terms of e, and not e, which is larger; q and k only if e needs a gradient.
    """
    if state is None:
        return q, k
    rotated_q, rotated_k = _Rotation.apply(*state, q, k)
    return rotated_q.to(q.dtype), rotated_k.to(k.dtype)


def rotate(x: Tensor, e: Tensor) -> Tensor:
    """Multiply the planes of each head by those of the position tensor as complex numbers, (x1 + i x2)(c + i s).

    x: [B, N, H, R] queries or keys; e: [B, N, L, W], where H is a multiple of L and heads l H/L .. (l + 1) H/L - 1
    share channel l. With W = 2R: (x1 c - x2 s, x2 c' + x1 s'). Returns [B, N, H, R] in the wider dtype of the two.
    """
    (rotated,) = _Rotation.apply(e, None, x, None)
    return rotated


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, initial: Tensor, delta: Tensor | None, q: Tensor, k: Tensor | None) -> tuple[Tensor, ...]:
        ctx.save_for_backward(initial, delta, *((q, k) if any(ctx.needs_input_grad[:2]) else (None, None)))
        cos, sin = _factors(PositionState(initial, delta).compact, q.shape[-1])
        heads = [_by_channel(x, cos) for x in (q, k) if x is not None]
        return tuple((x * cos).addcmul_(_exchanged(x), sin).flatten(2, 3) for x in heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        initial, delta, q, k = ctx.saved_tensors
        e = PositionState(initial, delta).compact
        d_initial = d_delta = None
        if q is not None:
            d_e = state_gradient(grads, (q,) if k is None else (q, k), e)
            d_initial = d_e.sum_to_size(initial.shape) if ctx.needs_input_grad[0] else None
            d_delta = d_e.to(delta.dtype) if ctx.needs_input_grad[1] else None
        d_q, *d_k = rotate_back(grads, e)
        return d_initial, d_delta, d_q, d_k[0] if d_k else None


def rotate_back(grads: tuple[Tensor, ...], e: Tensor) -> list[Tensor]:
    """Gradients of queries or keys [B, N, H, R] from those of the rotated ones, in the wider dtype."""
    cos, sin = _factors(e, grads[0].shape[-1])
    parts = (_by_channel(grad, cos) for grad in grads)
    return [_exchanged(grad * sin).addcmul_(grad, cos).flatten(2, 3) for grad in parts]


def state_gradient(grads: tuple[Tensor, ...], heads: tuple[Tensor, ...], e: Tensor) -> Tensor:
    """The gradient of e [B, N, L, W] from those of rotated queries and keys, summed over the heads of each channel.

    grads, heads: [B, N, H, R] each; products are in the wider dtype of a gradient and e.
    """
    wide = torch.promote_types(grads[0].dtype, e.dtype)
    pairs = [(_by_channel(grad.to(wide), e), _by_channel(x, e)) for grad, x in zip(grads, heads, strict=True)]
    size = (*e.shape[:3], 1, heads[0].shape[-1])
    d_cos, *more_cos = [(grad * x).sum_to_size(size).squeeze(3) for grad, x in pairs]
    d_sin, *more_sin = [(grad * _exchanged(x)).sum_to_size(size).squeeze(3) for grad, x in pairs]
    d_cos, (d_s1, d_s2) = sum(more_cos, d_cos), sum(more_sin, d_sin).chunk(2, dim=-1)
    if e.shape[-1] == 2 * size[-1]:
        return torch.cat([d_cos, -d_s1, d_s2], dim=-1)
    d_c1, d_c2 = d_cos.chunk(2, dim=-1)
    return torch.cat([d_c1 + d_c2, d_s2 - d_s1], dim=-1)


def _factors(e: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """(c, c') and (-s, s'), each [B, N, L, 1, R], of the rotation as (c, c') (x1, x2) + (-s, s') (x2, x1).

    So it takes whole heads: PyTorch is slow on a CPU in rows as short as half a head. size: R.
    """
    e = e[:, :, :, None]
    if e.shape[-1] == 2 * size:
        c1, c2, s1, s2 = e.chunk(4, dim=-1)
    else:
        c1, s1 = c2, s2 = e.chunk(2, dim=-1)
    return torch.cat([c1, c2], dim=-1), torch.cat([-s1, s2], dim=-1)


def _by_channel(x: Tensor, e: Tensor) -> Tensor:
    """[B, N, L, H/L, R] of heads [B, N, H, R]."""
    return x.unflatten(2, (e.shape[2], -1))


def _exchanged(x: Tensor) -> Tensor:
    """(x2, x1) of heads (x1, x2)."""
    return x.roll(x.shape[-1] // 2, -1)
