"""Forward and backward pass of attention by blocks of query rows. Folded shapes as in folding.py."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.blocked.block_bias import BlockBias, DifferentiableBlockBias
from megatape.attention.blocked.folding import Folded, fold, fold_rotated, score_scale, split_v_and_e, unfold
from megatape.attention.blocked.online_softmax import RowResult, attend_to_block, merge, score_gradient, write
from megatape.attention.blocked.ring import KeyGradients, keys_of_all_ranks
from megatape.attention.blocked.row_blocks import CausalMask, RowBlocks
from megatape.attention.rotation import PositionState, rotate_back, state_gradient


class Inputs(NamedTuple):
    """Tensors that attention reads.

    Attributes:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        v: Values [B, N, L, R].
        initial: First term of the position tensor e that is averaged, or None.
        delta: Second term of e, or None.
        document_starts: Index of the first token of each token's document, [B, N], or None.
        weights: Weights of the bias.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    initial: Tensor | None
    delta: Tensor | None
    document_starts: DocumentStarts
    weights: Sequence[Tensor]


class Outputs(NamedTuple):
    """Results of the forward pass.

    Attributes:
        content: A v [B, N, H, R].
        attended_state: A e [B, N, H, W], or None.
        log_sum: Log-sum-exp of each row of scores, float32 [G, S, N, 1].
    """

    content: Tensor
    attended_state: Tensor | None
    log_sum: Tensor


class Gradients(NamedTuple):
    """Results of the backward pass.

    Attributes:
        d_q: Gradient of the queries.
        d_k: Gradient of the keys.
        d_v: Gradient of the values.
        d_delta: Gradient of e's second term, or None.
        d_weights: Gradient of each weight of the bias, or None if it needs none.
    """

    d_q: Tensor
    d_k: Tensor
    d_v: Tensor
    d_delta: Tensor | None
    d_weights: list[Tensor | None]


def forward_pass(inputs: Inputs, row_blocks: RowBlocks, bias: ScoreBias | None) -> Outputs:
    """Compute attention.

    Args:
        inputs: Tensors that attention reads.
        row_blocks: Blocks of query rows, and the ranks.
        bias: Bias on the scores, or None.
    """
    q, k, v, initial, delta, document_starts, weights = inputs
    num_channels = k.shape[2]
    e = _position_tensor(initial, delta, num_channels)
    folded = fold_rotated(q, k, v, e)
    block_bias = BlockBias(bias, weights, num_channels, num_groups=len(folded.queries))
    out, log_sum = _attend(folded, v.dtype, document_starts, row_blocks, block_bias)

    content_out, state_out = split_v_and_e(out, v)
    content = unfold(content_out, q).to(v.dtype)
    attended_state = unfold(state_out, q).to(v.dtype) if state_out is not None else None
    return Outputs(content, attended_state, log_sum)


def backward_pass(
    inputs: Inputs,
    outputs: Outputs,
    d_content: Tensor,
    d_attended_state: Tensor | None,
    row_blocks: RowBlocks,
    bias: ScoreBias | None,
    needs_grad: Sequence[bool],
) -> Gradients:
    """Compute the gradients of attention.

    Args:
        inputs: Tensors that attention reads.
        outputs: Results of the forward pass.
        d_content: Gradient of A v.
        d_attended_state: Gradient of A e, or None.
        row_blocks: Blocks of query rows, and the ranks.
        bias: Bias on the scores, or None.
        needs_grad: Whether each weight of the bias needs a gradient.
    """
    q, k, v, initial, delta, document_starts, weights = inputs
    num_channels = k.shape[2]
    e = _position_tensor(initial, delta, num_channels)
    folded = fold_rotated(q, k, v, e)
    num_groups = len(folded.queries)
    d_out = _fold_outputs(d_content, d_attended_state, num_groups)
    out = _fold_outputs(outputs.content, outputs.attended_state, num_groups)
    row_sum = torch.linalg.vecdot(d_out, out).unsqueeze(-1)  # D, [G, S, N, 1]
    block_bias = DifferentiableBlockBias(bias, weights, num_channels, num_groups, needs_grad)

    d_queries, d_keys, d_values = _gradients(
        folded, v.dtype, d_out, outputs.log_sum, row_sum, document_starts, row_blocks, block_bias
    )
    d_queries.mul_(score_scale(q))
    d_q, d_k, d_v, d_delta = _unfold_gradients(d_queries, d_keys, d_values, q, k, v, e, delta)
    return Gradients(d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), d_delta, block_bias.gradients)


def _attend(
    folded: Folded,
    dtype: torch.dtype,
    document_starts: DocumentStarts,
    row_blocks: RowBlocks,
    block_bias: BlockBias,
) -> tuple[Tensor, Tensor]:
    """Compute attention to the keys of all ranks, see online_softmax.py.

    Args:
        folded: Queries, and this rank's keys and values.
        dtype: Data type for sending keys and values.
        document_starts: Index of the first token of each token's document, [B, N], or None.
        row_blocks: Blocks of query rows, and the ranks.
        block_bias: Bias on the scores.

    Returns:
        O [G, S, N, R + W], and the log-sum-exp L of each row of scores [G, S, N, 1].
    """
    queries = folded.queries
    num_groups, num_sequences, length, _ = queries.shape
    out = queries.new_empty(num_groups, num_sequences, length, folded.values.shape[-1])
    log_sum = queries.new_empty(num_groups, num_sequences, length, 1)
    context_axis = row_blocks.context_axis
    for key_rank, keys, values in keys_of_all_ranks(folded.keys, folded.values, dtype, context_axis):
        # This rank's keys come first, so there is nothing to merge with.
        combine = write if key_rank == context_axis.rank else merge
        mask = CausalMask(document_starts, queries, row_blocks, key_rank)
        for rows, columns in row_blocks.pairs(length, _first_keys(document_starts, block_bias), key_rank):
            block_bias.begin_block(rows, columns)
            for group in range(num_groups):
                scores = queries[group, :, rows] @ keys[:, columns].mT  # S = Q K^T, [S, rows, columns]
                block_bias.add_to(scores, group)
                mask.hide(scores, rows, columns)
                row_result = RowResult(out[group, :, rows], log_sum[group, :, rows])
                combine(row_result, attend_to_block(scores, values[:, columns]))
    return out, log_sum


def _gradients(
    folded: Folded,
    dtype: torch.dtype,
    d_out: Tensor,
    log_sum: Tensor,
    row_sum: Tensor,
    document_starts: DocumentStarts,
    row_blocks: RowBlocks,
    block_bias: DifferentiableBlockBias,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of rotated queries and of this rank's rotated keys and [v | e], see online_softmax.py.

    Args:
        folded: Queries, and this rank's keys and values.
        dtype: Data type for sending keys, values and their gradients.
        d_out: dO, [G, S, N, R + W].
        log_sum: L, [G, S, N, 1].
        row_sum: D, [G, S, N, 1].
        document_starts: Index of the first token of each token's document, [B, N], or None.
        row_blocks: Blocks of query rows, and the ranks.
        block_bias: Bias on the scores. Gets the gradients of its weights.
    """
    queries = folded.queries
    num_groups, _, length, _ = queries.shape
    d_queries = torch.zeros_like(queries)
    key_gradients = KeyGradients(dtype, row_blocks.context_axis)
    for key_rank, keys, values in keys_of_all_ranks(folded.keys, folded.values, dtype, row_blocks.context_axis):
        d_keys = torch.zeros_like(keys)
        d_values = torch.zeros_like(values)
        mask = CausalMask(document_starts, queries, row_blocks, key_rank)
        for rows, columns in row_blocks.pairs(length, _first_keys(document_starts, block_bias), key_rank):
            block_bias.begin_block(rows, columns)
            for group in range(num_groups):
                query_rows = queries[group, :, rows]
                d_out_rows = d_out[group, :, rows]
                # S - L, then P = exp(S - L), [S, rows, columns]
                attention = torch.baddbmm(log_sum[group, :, rows], query_rows, keys[:, columns].mT, beta=-1)
                block_bias.add_to(attention, group)
                mask.hide(attention, rows, columns).exp_()

                d_scores = score_gradient(attention, d_out_rows, values[:, columns], row_sum[group, :, rows])
                d_values[:, columns].baddbmm_(attention.mT, d_out_rows)  # dV += P^T dO
                d_queries[group, :, rows].baddbmm_(d_scores, keys[:, columns])  # dQ += dS K
                d_keys[:, columns].baddbmm_(d_scores.mT, query_rows)  # dK += dS^T Q
                block_bias.add_gradient(d_scores, group)
            block_bias.finish_block()
        key_gradients.add(key_rank, d_keys, d_values)
    d_own_keys, d_own_values = key_gradients.finish()
    return d_queries, d_own_keys, d_own_values


def _first_keys(document_starts: DocumentStarts, block_bias: BlockBias) -> DocumentStarts:
    """Return the document starts by which blocks of keys begin. None with a bias, because CoPE's sums over all keys."""
    if block_bias.bias is not None:
        return None
    return document_starts


def _position_tensor(initial: Tensor | None, delta: Tensor | None, num_channels: int) -> Tensor | None:
    """Return e [B, N, L, W] in float32, or None without a state."""
    if initial is None:
        return None
    return PositionState(initial, delta).tensor(num_channels)


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
    """Return gradients of q, k, v and delta, in float32 except for delta, from those of Folded. q and k are not rotated."""
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
