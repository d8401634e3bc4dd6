"""Rotation of queries and keys by the position tensor, and its gradient.

Shapes as in model/transformer.py. A plane of a head is a pair of channels (x1, x2), one in each half. A position tensor e has
width W = R, (cos | sin) for R/2 planes, or W = 2R, (cos, cos' | sin, sin'). With W = 2R, both rows of a plane's rotation have
their own cosine and sine, as needed by ablations mixing planes.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class PositionState(NamedTuple):
    """Encoding's state beside the content. For rotary encodings, the position tensor e = initial + delta.

    Attributes:
        initial: Function of the position ids, or None without a state. For position tensors [B, N, 1, W] in float32, equal for
            all channels.
        delta: Sum of all updates so far, [B, N, L, W] in compute precision, or None before the first update.
    """

    initial: Tensor | None
    delta: Tensor | None = None

    @property
    def compact(self) -> Tensor:
        """Position tensor e in float32, [B, N, L, W], or [B, N, 1, W] before the first update, with equal channels."""
        assert self.initial is not None
        if self.delta is None:
            return self.initial
        return self.initial + self.delta

    def tensor(self, num_channels: int) -> Tensor:
        """Return the position tensor e [B, N, L, W] in float32, where L is `num_channels`."""
        return self.compact.expand(-1, -1, num_channels, -1)


def rotate_qk(q: Tensor, k: Tensor, state: PositionState | None) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by e.

    Autograd saves the two terms of e instead of the larger e, and q and k only if e needs a gradient.

    Args:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        state: State with e, or None to rotate nothing.

    Returns:
        Rotated queries and keys, in their own dtype.
    """
    if state is None:
        return q, k
    rotated_q, rotated_k = _Rotation.apply(*state, q, k)
    return rotated_q.to(q.dtype), rotated_k.to(k.dtype)


def rotate(x: Tensor, e: Tensor) -> Tensor:
    """Multiply planes of heads by planes of the position tensor as complex numbers, (x1 + i x2)(c + i s).

    With W = 2R, the result is (x1 c - x2 s, x2 c' + x1 s').

    Args:
        x: Queries or keys [B, N, H, R].
        e: Position tensor [B, N, L, W], where H is a multiple of L. Heads l H/L .. (l + 1) H/L - 1 share channel l.

    Returns:
        Rotated heads [B, N, H, R], in the wider dtype of x and e.
    """
    (rotated,) = _Rotation.apply(e, None, x, None)
    return rotated


class _Rotation(torch.autograd.Function):
    """Rotates q, and k unless it is None, by e = initial + delta."""

    @staticmethod
    def forward(
        ctx: Any,
        initial: Tensor,
        delta: Tensor | None,
        q: Tensor,
        k: Tensor | None,
    ) -> tuple[Tensor, ...]:
        e_needs_gradient = any(ctx.needs_input_grad[:2])
        if e_needs_gradient:
            ctx.save_for_backward(initial, delta, q, k)
        else:
            ctx.save_for_backward(initial, delta, None, None)
        e = PositionState(initial, delta).compact
        cos, sin = _factors(e, q.shape[-1])  # [B, N, L, 1, R] each
        outputs = []
        for heads in (q, k):
            if heads is not None:
                x = _by_channel(heads, e)  # [B, N, L, H/L, R]
                rotated = (x * cos).addcmul_(_exchange_halves(x), sin)
                outputs.append(rotated.flatten(2, 3))
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        initial, delta, q, k = ctx.saved_tensors
        e = PositionState(initial, delta).compact
        d_initial = None
        d_delta = None
        if q is not None:
            heads = (q,) if k is None else (q, k)
            d_e = state_gradient(grads, heads, e)
            if ctx.needs_input_grad[0]:
                d_initial = d_e.sum_to_size(initial.shape)
            if ctx.needs_input_grad[1]:
                d_delta = d_e.to(delta.dtype)
        d_heads = rotate_back(grads, e)
        d_q = d_heads[0]
        d_k = d_heads[1] if len(d_heads) == 2 else None
        return d_initial, d_delta, d_q, d_k


def rotate_back(grads: tuple[Tensor, ...], e: Tensor) -> list[Tensor]:
    """Compute gradients of queries or keys by the transposed rotation.

    Args:
        grads: Gradients of rotated heads, [B, N, H, R] each.
        e: Position tensor [B, N, L, W].

    Returns:
        Gradients before the rotation, [B, N, H, R] each, in the wider dtype of gradient and e.
    """
    cos, sin = _factors(e, grads[0].shape[-1])  # [B, N, L, 1, R] each
    d_heads = []
    for grad in grads:
        by_channel = _by_channel(grad, e)  # [B, N, L, H/L, R]
        d_x = _exchange_halves(by_channel * sin).addcmul_(by_channel, cos)
        d_heads.append(d_x.flatten(2, 3))
    return d_heads


def state_gradient(grads: tuple[Tensor, ...], heads: tuple[Tensor, ...], e: Tensor) -> Tensor:
    """Compute the gradient of e from those of rotated queries and keys, summing over the heads of each channel.

    Args:
        grads: Gradients of rotated heads, [B, N, H, R] each.
        heads: Heads before their rotation, [B, N, H, R] each.
        e: Position tensor [B, N, L, W].

    Returns:
        Gradient of e, [B, N, L, W], multiplied in the wider dtype of gradient and e.
    """
    head_dim = heads[0].shape[-1]
    dtype = torch.promote_types(grads[0].dtype, e.dtype)
    channel_shape = (*e.shape[:3], 1, head_dim)

    # Gradients of the factors (c, c') and (s, s'), whose signs differ from those of _factors: [B, N, L, R] each.
    cos_gradients = []
    sin_gradients = []
    for grad, head in zip(grads, heads, strict=True):
        d_rotated = _by_channel(grad.to(dtype), e)  # [B, N, L, H/L, R]
        x = _by_channel(head, e)  # [B, N, L, H/L, R]
        cos_gradients.append((d_rotated * x).sum_to_size(channel_shape).squeeze(3))
        sin_gradients.append((d_rotated * _exchange_halves(x)).sum_to_size(channel_shape).squeeze(3))
    d_cos = _sum(cos_gradients)
    d_sin = _sum(sin_gradients)

    # The first row of a plane's rotation is (c, -s), the second (s', c').
    d_s1, d_s2 = d_sin.chunk(2, dim=-1)
    if e.shape[-1] == 2 * head_dim:
        return torch.cat([d_cos, -d_s1, d_s2], dim=-1)
    d_c1, d_c2 = d_cos.chunk(2, dim=-1)
    return torch.cat([d_c1 + d_c2, d_s2 - d_s1], dim=-1)


def _sum(parts: list[Tensor]) -> Tensor:
    """Add tensors in order."""
    first, *others = parts
    return sum(others, first)


def _factors(e: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return the factors (c, c') and (-s, s') of the rotation (c, c') (x1, x2) + (-s, s') (x2, x1).

    Two tensors [B, N, L, 1, R], for e [B, N, L, W]. They multiply whole heads, because PyTorch on a CPU is slow for rows as
    short as half a head.
    """
    by_channel = e[:, :, :, None]
    if e.shape[-1] == 2 * head_dim:
        c1, c2, s1, s2 = by_channel.chunk(4, dim=-1)
    else:
        c1, s1 = by_channel.chunk(2, dim=-1)
        c2 = c1
        s2 = s1
    return torch.cat([c1, c2], dim=-1), torch.cat([-s1, s2], dim=-1)


def _by_channel(x: Tensor, e: Tensor) -> Tensor:
    """View heads [B, N, H, R] as [B, N, L, H/L, R], where L is the number of channels of e [B, N, L, W]."""
    return x.unflatten(2, (e.shape[2], -1))


def _exchange_halves(x: Tensor) -> Tensor:
    """Return (x2, x1) of heads (x1, x2)."""
    return x.roll(x.shape[-1] // 2, -1)
