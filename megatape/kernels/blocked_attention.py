"""Rotary causal attention over content and position values in one pass, by blocks of query rows, for the CPU.

PyTorch's CPU flash attention refuses values wider than the keys, and calling it once for v and once for e computes every score
twice in each direction. Here the scores of a block of rows are computed once and used for [v | e]. Two choices keep the
memory near that of rotary attention: nothing of size N x N is kept, and queries and keys are kept before their
rotation, which is computed again in the backward pass (e has to be kept in any case).

Shapes as in model/position.py; G = H / L query heads share a key/value head. Inside, S = B * L sequences of keys.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.kernels.rotation import rotate, rotate_backward

BLOCK = 128  # query rows; measured best of 64, 128, 256 and 512 at 512 and 1024 tokens, 12 heads of 64


def blocked_attention(q: Tensor, k: Tensor, v: Tensor, e: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Causal attention with queries and keys rotated by e, over the values v and e.

    q: [B, N, H, R]; k, v, e: [B, N, L, R]; starts: [B, N], first token that each token may see, or None for all before it.
    Returns (A v, A e), each [B, N, H, R]. Computes in float32 whatever comes in."""
    return _BlockedAttention.apply(q, k, v, e, starts)


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, e: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        queries, keys, values = _fold_rotated(q, k, v, e)
        groups, _, length, _ = queries.shape
        out = queries.new_empty(*queries.shape[:3], values.shape[-1])
        log_sum = queries.new_empty(*queries.shape[:3], 1)
        mask = _Mask(starts, e.shape[2], queries)
        for group in range(groups):
            for rows in _blocks(length):
                seen = slice(0, rows.stop)
                scores = mask(queries[group, :, rows] @ keys[:, seen].mT, rows)
                largest = scores.amax(-1, keepdim=True)
                scores.sub_(largest).exp_()
                total = scores.sum(-1, keepdim=True)
                torch.div(scores @ values[:, seen], total, out=out[group, :, rows])
                torch.add(largest, total.log_(), out=log_sum[group, :, rows])
        content, position = (_unfold(part, q).to(v.dtype) for part in out.chunk(2, dim=-1))
        ctx.save_for_backward(q, k, v, e, starts, content, position, log_sum)
        return content, position

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_content: Tensor, d_position: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, e, starts, content, position, log_sum = ctx.saved_tensors
        queries, keys, values = _fold_rotated(q, k, v, e)
        groups, _, length, _ = queries.shape
        d_out = torch.cat([_fold(d_content, groups), _fold(d_position, groups)], dim=-1)
        out = torch.cat([_fold(content, groups), _fold(position, groups)], dim=-1)
        row_sum = torch.linalg.vecdot(d_out, out).unsqueeze(-1)
        d_queries, d_keys, d_values = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
        mask = _Mask(starts, e.shape[2], queries)
        for group in range(groups):
            for rows in _blocks(length):
                seen = slice(0, rows.stop)
                d_rows, q_rows = d_out[group, :, rows], queries[group, :, rows]
                weights = torch.baddbmm(log_sum[group, :, rows], q_rows, keys[:, seen].mT, beta=-1)
                weights = mask(weights, rows).exp_()
                d_values[:, seen].baddbmm_(weights.mT, d_rows)
                d_scores = torch.baddbmm(row_sum[group, :, rows], d_rows, values[:, seen].mT, beta=-1).mul_(weights)
                torch.bmm(d_scores, keys[:, seen], out=d_queries[group, :, rows])
                d_keys[:, seen].baddbmm_(d_scores.mT, q_rows)
        d_queries.mul_(_scale(q))
        d_v, d_e = (_unfold(part[None], v) for part in d_values.chunk(2, dim=-1))
        d_q, from_queries = rotate_backward(_unfold(d_queries, q), q.float(), e.float())
        d_k, from_keys = rotate_backward(_unfold(d_keys[None], k), k.float(), e.float())
        return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), (d_e + from_queries + from_keys).to(e.dtype), None


class _Mask:
    """Sets the scores that a block of rows must not see to minus infinity, in place: later tokens and other documents."""

    def __init__(self, starts: Tensor | None, channels: int, like: Tensor) -> None:
        self.starts, self.channels = starts, channels
        self.later = like.new_full((BLOCK, BLOCK), -math.inf).triu_(1)

    def __call__(self, scores: Tensor, rows: slice) -> Tensor:
        size = rows.stop - rows.start
        scores[:, :, rows].add_(self.later[:size, :size])
        if self.starts is not None:
            columns = torch.arange(rows.stop, device=scores.device)
            hidden = columns < self.starts[:, rows, None]  # [B, rows, columns]
            scores.unflatten(0, (-1, self.channels)).masked_fill_(hidden[:, None], -math.inf)
        return scores


def _blocks(length: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]


def _scale(q: Tensor) -> float:
    return q.shape[-1] ** -0.5


def _fold(x: Tensor, groups: int) -> Tensor:
    """[B, N, L * G, R] -> [G, B * L, N, R], contiguous, float32."""
    return x.float().unflatten(2, (-1, groups)).permute(3, 0, 2, 1, 4).flatten(1, 2).contiguous()


def _unfold(x: Tensor, like: Tensor) -> Tensor:
    """[G, B * L, N, R] -> [B, N, L * G, R], contiguous, the inverse of _fold."""
    return x.unflatten(1, (like.shape[0], -1)).permute(1, 3, 2, 0, 4).flatten(2, 3).contiguous()


def _fold_rotated(q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled rotated queries [G, S, N, R], rotated keys [S, N, R] and values [v | e] [S, N, 2R]."""
    groups = q.shape[2] // k.shape[2]
    queries = _fold(rotate(q.float(), e.float()), groups).mul_(_scale(q))
    keys = _fold(rotate(k.float(), e.float()), 1)[0]
    values = torch.cat([_fold(v, 1)[0], _fold(e, 1)[0]], dim=-1)
    return queries, keys, values
