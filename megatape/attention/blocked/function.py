"""Causal attention by blocks of query rows, as one differentiable function.

TAPE on a CPU: PyTorch's flash attention does not support values wider than keys there, and calling it separately for v and e
would compute every score twice, forward and backward. Here each block's scores are computed once and used for [v | e]. Two
choices keep memory near that of rotary attention: nothing of size N x N is saved, and queries and keys are saved before
rotating them, which the backward pass repeats.

Bias on the scores: each block's bias is computed when adding it, and again in the backward pass, so the bias of all pairs never
exists.

Ring attention on P context-parallel ranks (Liu et al., arXiv 2310.01889): distributed/layout.py splits tokens in a zigzag, and
the computation is the same over more blocks. Each rank's rotated keys and [v | e] travel around the ring in compute precision,
overlapping with the previous rank's scores, and each block of rows merges its attention to all ranks' keys by their
log-sum-exp. In the backward pass they travel again. The sum of their gradients follows one step later, until it is back at its
rank.

Shapes as in model/transformer.py, where N is the N/P tokens of this rank; folded shapes as in folding.py.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.blocked.bias_gradient import BiasGradient
from megatape.attention.blocked.folding import fold, fold_rotated, score_scale, split_v_and_e, unfold
from megatape.attention.blocked.ring import KeyGradients, keys_of_all_ranks
from megatape.attention.blocked.row_blocks import CausalMask, RowBlocks
from megatape.attention.rotation import PositionState, rotate_back, state_gradient

# Finite lower bound of the maximum of a row of scores, all of which may be masked.
LOWEST = torch.finfo(torch.float32).min
# Index of the first weight of the bias among the arguments of BlockedAttention.
FIRST_WEIGHT = 8


class BlockedAttention(torch.autograd.Function):
    """A v [B, N, H, R], and with a state A e [B, N, H, W] or else None."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        initial: Tensor | None,
        delta: Tensor | None,
        document_starts: DocumentStarts,
        row_blocks: RowBlocks,
        bias: ScoreBias | None,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        context_axis = row_blocks.context_axis
        num_channels = k.shape[2]
        e = _position_tensor(initial, delta, num_channels)
        queries, own_keys, own_values = fold_rotated(q, k, v, e)
        num_groups, num_sequences, length, _ = queries.shape
        out = queries.new_empty(num_groups, num_sequences, length, own_values.shape[-1])
        log_sum = queries.new_empty(num_groups, num_sequences, length, 1)
        starts_of_blocks = document_starts if bias is None else None

        for key_rank, keys, values in keys_of_all_ranks(own_keys, own_values, v.dtype, context_axis):
            mask = CausalMask(document_starts, queries, row_blocks, key_rank)
            for rows, columns in row_blocks.pairs(length, starts_of_blocks, key_rank):
                bias_block = None
                if bias is not None:
                    bias_block = bias.block(weights, rows, columns)
                for group in range(num_groups):
                    scores = queries[group, :, rows] @ keys[:, columns].mT  # [S, rows, columns]
                    if bias_block is not None:
                        _by_sample(scores, num_channels).add_(bias_block[:, group::num_groups])
                    mask.hide(scores, rows, columns)

                    # A row that sees none of these keys gets zeros, and the lowest possible log-sum-exp.
                    largest = scores.amax(-1, keepdim=True).clamp_(min=LOWEST)
                    exponentials = scores.sub_(largest).exp_()
                    total = exponentials.sum(-1, keepdim=True).clamp_(min=1.0)
                    weighted = exponentials @ values[:, columns]  # [S, rows, R + W]

                    out_rows = out[group, :, rows]
                    log_sum_rows = log_sum[group, :, rows]
                    if key_rank == context_axis.rank:
                        # This rank's keys come first, so there is nothing to merge with.
                        torch.div(weighted, total, out=out_rows)
                        torch.add(largest, total.log_(), out=log_sum_rows)
                    else:
                        _merge(out_rows, log_sum_rows, weighted.div_(total), total.log_().add_(largest))

        content_out, state_out = split_v_and_e(out, v)
        content = unfold(content_out, q).to(v.dtype)
        attended_state = None
        if state_out is not None:
            attended_state = unfold(state_out, q).to(v.dtype)
        ctx.row_blocks = row_blocks
        ctx.bias = bias
        ctx.save_for_backward(q, k, v, initial, delta, document_starts, content, attended_state, log_sum, *weights)
        return content, attended_state

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        d_content: Tensor,
        d_attended_state: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        q, k, v, initial, delta, document_starts, content, attended_state, log_sum, *weights = ctx.saved_tensors
        e = _position_tensor(initial, delta, k.shape[2])
        queries, own_keys, own_values = fold_rotated(q, k, v, e)
        num_groups = len(queries)
        d_out = _fold_outputs(d_content, d_attended_state, num_groups)
        out = _fold_outputs(content, attended_state, num_groups)
        row_sum = torch.linalg.vecdot(d_out, out).unsqueeze(-1)  # [G, S, N, 1]
        bias = None
        if ctx.bias is not None:
            bias = BiasGradient(ctx.bias, weights, ctx.needs_input_grad[FIRST_WEIGHT:])

        d_queries = torch.zeros_like(queries)
        key_gradients = KeyGradients(v.dtype, ctx.row_blocks.context_axis)
        for key_rank, keys, values in keys_of_all_ranks(own_keys, own_values, v.dtype, ctx.row_blocks.context_axis):
            d_keys = torch.zeros_like(keys)
            d_values = torch.zeros_like(values)
            mask = CausalMask(document_starts, queries, ctx.row_blocks, key_rank)
            starts_of_blocks = document_starts if bias is None else None
            for rows, columns in ctx.row_blocks.pairs(queries.shape[2], starts_of_blocks, key_rank):
                bias_block = None if bias is None else bias.block(rows, columns)
                for group in range(num_groups):
                    query_rows = queries[group, :, rows]
                    d_out_rows = d_out[group, :, rows]

                    # A = exp(scores - log_sum), [S, rows, columns]
                    attention = torch.baddbmm(log_sum[group, :, rows], query_rows, keys[:, columns].mT, beta=-1)
                    if bias_block is not None:
                        _by_sample(attention, k.shape[2]).add_(bias_block[:, group::num_groups])
                    mask.hide(attention, rows, columns).exp_()

                    # dS = A * (dO v^T - row_sum), [S, rows, columns]
                    d_attention = torch.baddbmm(row_sum[group, :, rows], d_out_rows, values[:, columns].mT, beta=-1)
                    d_scores = d_attention.mul_(attention)

                    d_values[:, columns].baddbmm_(attention.mT, d_out_rows)
                    d_queries[group, :, rows].baddbmm_(d_scores, keys[:, columns])
                    d_keys[:, columns].baddbmm_(d_scores.mT, query_rows)
                    if bias is not None:
                        bias.add(_by_sample(d_scores, k.shape[2]), slice(group, None, num_groups))
                if bias is not None:
                    bias.finish_block()
            key_gradients.add(key_rank, d_keys, d_values)

        d_keys, d_values = key_gradients.finish()
        d_queries.mul_(score_scale(q))
        d_q, d_k, d_v, d_delta = _unfold_gradients(d_queries, d_keys, d_values, q, k, v, e, delta)
        d_weights = () if bias is None else bias.gradients
        return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), None, d_delta, None, None, None, *d_weights


def _position_tensor(initial: Tensor | None, delta: Tensor | None, num_channels: int) -> Tensor | None:
    """Return e [B, N, L, W] in float32, None without a state."""
    if initial is None:
        return None
    return PositionState(initial, delta).tensor(num_channels)


def _by_sample(scores: Tensor, num_channels: int) -> Tensor:
    """View scores [S, rows, columns] as [B, L, rows, columns]."""
    return scores.unflatten(0, (-1, num_channels))


def _merge(out: Tensor, log_sum: Tensor, other_out: Tensor, other_log_sum: Tensor) -> None:
    """Merge attention of the same rows to disjoint sets of keys, in place.

    Args:
        out: Attention to the first keys, [S, rows, R + W]. Overwritten with attention to all keys.
        log_sum: Log-sum-exp of the scores of the first keys, [S, rows, 1]. Overwritten with that of all keys.
        other_out: Attention to the other keys. Its memory is reused.
        other_log_sum: Log-sum-exp of the scores of the other keys. Its memory is reused.
    """
    log_sum_of_all = torch.logaddexp(log_sum, other_log_sum)
    share = log_sum.sub_(log_sum_of_all).exp_()
    other_share = other_log_sum.sub_(log_sum_of_all).exp_()
    out.mul_(share).add_(other_out.mul_(other_share))
    log_sum.copy_(log_sum_of_all)


def _fold_outputs(content: Tensor, attended_state: Tensor | None, num_groups: int) -> Tensor:
    """Join A v and A e, or their gradients, as [G, S, N, R + W]."""
    folded = [fold(content, num_groups)]
    if attended_state is not None:
        folded.append(fold(attended_state, num_groups))
    return torch.cat(folded, dim=-1)


def _unfold_gradients(
    d_queries: Tensor,
    d_keys: Tensor,
    d_values: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e: Tensor | None,
    delta: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return gradients of q, k, v and delta, in float32 except for delta.

    Args:
        d_queries: Gradient of the rotated queries, [G, S, N, R].
        d_keys: Gradient of the rotated keys, [S, N, R].
        d_values: Gradient of v, or of [v | e], [S, N, R + W].
        q: Queries [B, N, H, R], before their rotation.
        k: Keys [B, N, L, R], before their rotation.
        v: Values [B, N, L, R].
        e: Position tensor [B, N, L, W], or None.
        delta: Part of e that needs a gradient, or None.
    """
    d_q = unfold(d_queries, q)
    d_k = unfold(d_keys[None], k)
    v_part, e_part = split_v_and_e(d_values, v)
    d_v = unfold(v_part[None], v)
    if e is None:
        return d_q, d_k, d_v, None
    d_delta = None
    if delta is not None:
        # e rotates queries and keys, and it is a value.
        assert e_part is not None
        d_e = state_gradient((d_q, d_k), (q, k), e).add_(unfold(e_part[None], v))
        d_delta = d_e.to(delta.dtype)
    d_q, d_k = rotate_back((d_q, d_k), e)
    return d_q, d_k, d_v, d_delta
