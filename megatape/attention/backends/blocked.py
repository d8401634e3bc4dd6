"""Causal attention by blocks of query rows: over content and position values in one pass, or with a bias on the scores.

TAPE on a CPU: PyTorch's flash attention refuses values wider than the keys there, and calling it once for v and once
for e would compute every score twice, forward and backward. Here the scores of a block of rows are computed once and
used for [v | e]. Two choices keep memory near that of rotary attention: nothing of size N x N is saved, and queries
and keys are saved before their rotation, which the backward pass repeats.

Encodings that bias the scores: the bias of a block is computed where it is added, and again in the
backward pass, so it never exists for all pairs.

Ring attention of P context-parallel ranks (arXiv 2310.01889), whose tokens distributed/layout.py divides in a zigzag, is the
same over more blocks. Rotated keys and [v | e] of each rank travel around the ring in the compute precision while the scores
of the previous ones are computed, and each block of rows merges its attention to the keys of each rank. In the backward pass
they travel again, and the sum of their gradients follows one step later, until it is back at their rank.

Shapes as in model/transformer.py, where N is the N/P tokens of this rank; W is the width of e, G = H / L query heads share
a key/value head. Inside, S = B * L sequences of keys.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.attention.backend import AttentionRequirements, Backend, DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import PositionState, rotate_back, rotate_qk, state_gradient
from megatape.distributed.asynchronous import AsyncShift
from megatape.distributed.layout import zigzag
from megatape.distributed.mesh import SINGLE, Axis

LOWEST = torch.finfo(torch.float32).min
BLOCK = 128  # query rows; the fastest of 64, 128, 256 and 512 at 512 and 1024 tokens, 12 heads of 64
LONG_BLOCK = 512  # at most, of context-parallel ranks: at their lengths, the time to start an operation counts more


class Blocked(Backend):
    """Supports everything on any device, and is the only one for context-parallel ranks, but without a bias there."""

    def __init__(self, context: Axis = SINGLE) -> None:
        self.context = context

    def unsupported_reason(self, requirements: AttentionRequirements) -> str | None:
        return None

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: PositionState | None,
        bias: ScoreBias | None,
        document_starts: DocumentStarts,
        move: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes in float32, whatever the dtype of its arguments."""
        if not move:
            (q, k), state = rotate_qk(q, k, state), None
        initial, delta = state or (None, None)
        weights = () if bias is None else bias.weights
        return _BlockedAttention.apply(q, k, v, initial, delta, document_starts, self.context, bias, *weights)


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        initial: Tensor | None,
        delta: Tensor | None,
        document_starts: DocumentStarts,
        context: Axis,
        bias: ScoreBias | None,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        e = None if initial is None else PositionState(initial, delta).tensor(k.shape[2])
        queries, own_keys, own_values = _fold_rotated(q, k, v, e)
        groups, _, length, _ = queries.shape
        out = queries.new_empty(*queries.shape[:3], own_values.shape[-1])
        log_sum = queries.new_empty(*queries.shape[:3], 1)
        for source, keys, values in _around(own_keys, own_values, v.dtype, context):
            hide = _Mask(document_starts, queries, context, source)
            for rows, seen in _blocks(length, document_starts if bias is None else None, context, source):
                added = None if bias is None else bias.block(weights, rows, seen)
                for group in range(groups):
                    scores = queries[group, :, rows] @ keys[:, seen].mT
                    if added is not None:
                        scores.unflatten(0, (-1, k.shape[2])).add_(added[:, group::groups])
                    hide(scores, rows, seen)
                    # A row that sees none of these keys gets zeros, with the smallest logarithm of a sum of weights.
                    largest = scores.amax(-1, keepdim=True).clamp_(min=LOWEST)
                    scores.sub_(largest).exp_()
                    total = scores.sum(-1, keepdim=True).clamp_(min=1.0)
                    found = out[group, :, rows], log_sum[group, :, rows]
                    if source == context.rank:  # the first one
                        torch.div(scores @ values[:, seen], total, out=found[0])
                        torch.add(largest, total.log_(), out=found[1])
                    else:
                        _merge(*found, (scores @ values[:, seen]).div_(total), total.log_().add_(largest))
        of_content, of_position = _parts(out, v)
        content = _unfold(of_content, q).to(v.dtype)
        position = None if of_position is None else _unfold(of_position, q).to(v.dtype)
        ctx.context = context
        ctx.bias = bias
        ctx.save_for_backward(q, k, v, initial, delta, document_starts, content, position, log_sum, *weights)
        return content, position

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_content: Tensor, d_position: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, initial, delta, document_starts, content, position, log_sum, *weights = ctx.saved_tensors
        e = None if initial is None else PositionState(initial, delta).tensor(k.shape[2])
        queries, own_keys, own_values = _fold_rotated(q, k, v, e)
        groups, _, length, _ = queries.shape
        d_out = torch.cat([_fold(part, groups) for part in (d_content, d_position) if part is not None], dim=-1)
        out = torch.cat([_fold(part, groups) for part in (content, position) if part is not None], dim=-1)
        row_sum = torch.linalg.vecdot(d_out, out).unsqueeze(-1)
        d_queries = torch.zeros_like(queries)
        gradients = _KeyGradients(v.dtype, ctx.context)
        bias = None if ctx.bias is None else _BiasGradient(ctx.bias, weights, ctx.needs_input_grad[8:])
        for source, keys, values in _around(own_keys, own_values, v.dtype, ctx.context):
            hide = _Mask(document_starts, queries, ctx.context, source)
            d_keys = torch.zeros_like(keys)
            d_values = torch.zeros_like(values)
            for rows, seen in _blocks(length, document_starts if bias is None else None, ctx.context, source):
                added = None if bias is None else bias.block(rows, seen)
                for group in range(groups):
                    d_rows = d_out[group, :, rows]
                    q_rows = queries[group, :, rows]
                    attention = torch.baddbmm(log_sum[group, :, rows], q_rows, keys[:, seen].mT, beta=-1)
                    if added is not None:
                        attention.unflatten(0, (-1, k.shape[2])).add_(added[:, group::groups])
                    hide(attention, rows, seen).exp_()
                    d_values[:, seen].baddbmm_(attention.mT, d_rows)
                    d_scores = torch.baddbmm(row_sum[group, :, rows], d_rows, values[:, seen].mT, beta=-1).mul_(attention)
                    d_queries[group, :, rows].baddbmm_(d_scores, keys[:, seen])
                    d_keys[:, seen].baddbmm_(d_scores.mT, q_rows)
                    if bias is not None:
                        bias.add(d_scores.unflatten(0, (-1, k.shape[2])), slice(group, None, groups))
                if bias is not None:
                    bias.finish_block()
            gradients.add(source, d_keys, d_values)
        d_keys, d_values = gradients.finish()
        d_queries.mul_(_scale(q))
        of_content, of_position = _parts(d_values, v)
        d_q = _unfold(d_queries, q)
        d_k = _unfold(d_keys[None], k)
        d_v = _unfold(of_content[None], v)
        d_delta = None
        if e is not None and of_position is not None:
            if delta is not None:
                d_delta = state_gradient((d_q, d_k), (q, k), e).add_(_unfold(of_position[None], v)).to(delta.dtype)
            d_q, d_k = rotate_back((d_q, d_k), e)
        d_weights = () if bias is None else bias.gradients
        return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), None, d_delta, None, None, None, *d_weights


class _BiasGradient:
    """Recomputes the bias block by block and sums the gradients of its weights over the blocks."""

    def __init__(self, bias: ScoreBias, weights: list[Tensor], needs_grad: tuple[bool, ...]) -> None:
        self.bias = bias
        self.weights = tuple(weight.detach().requires_grad_(needs) for weight, needs in zip(weights, needs_grad, strict=True))
        self.gradients = [torch.zeros_like(weight) if weight.requires_grad else None for weight in self.weights]

    def block(self, rows: slice, columns: slice) -> Tensor:
        with torch.enable_grad():
            self.numbers = self.bias.block(self.weights, rows, columns)
        if self.numbers.requires_grad:
            self.d_numbers = torch.empty_like(self.numbers)
        return self.numbers.detach()

    def add(self, d_scores: Tensor, heads: slice) -> None:
        """d_scores: [B, L, rows, columns] of the heads `heads`; summed over the batch if all samples share one bias."""
        if self.numbers.requires_grad:
            self.d_numbers[:, heads] = d_scores if len(self.numbers) > 1 else d_scores.sum(0, keepdim=True)

    def finish_block(self) -> None:
        if self.numbers.requires_grad:
            trained = [weight for weight in self.weights if weight.requires_grad]
            # A block need not read all of them.
            found = iter(torch.autograd.grad(self.numbers, trained, self.d_numbers, materialize_grads=True))
            for gradient in self.gradients:
                if gradient is not None:
                    gradient += next(found)


class _KeyGradients:
    """Sums the gradients of keys and values: this rank's here, those of other ranks on their way back to them."""

    def __init__(self, dtype: torch.dtype, context: Axis) -> None:
        self.dtype = dtype
        self.context = context
        self.num_added = 0
        self.returning: AsyncShift | None = None  # what the previous ranks have summed of the same keys

    def add(self, source: int, d_keys: Tensor, d_values: Tensor) -> None:
        """The gradients that this rank's rows give the keys and values of rank `source`, in the order of `_around`."""
        self.num_added += 1
        if source == self.context.rank:
            self.own = d_keys, d_values
            return
        total = _pack(d_keys, d_values)
        if self.returning is not None:
            total += self.returning.wait()
        self.returning = AsyncShift(total.to(self.dtype), self.context, overlap=self.num_added < self.context.size)

    def finish(self) -> tuple[Tensor, Tensor]:
        """The whole gradients of this rank's keys and values."""
        if self.returning is not None:
            for own, others in zip(self.own, _unpack(self.returning.wait(), *self.own), strict=True):
                own += others
        return self.own


class _Mask:
    """Sets the scores of later tokens and of other documents to minus infinity.

    It works in place, for one block of rows at a time, and the keys of one context-parallel rank.
    """

    def __init__(self, document_starts: DocumentStarts, like: Tensor, context: Axis, source: int) -> None:
        self.document_starts = document_starts
        self.is_own = source == context.rank
        size = _block_size(like.shape[2], context)
        self.later = like.new_full((size, size), -math.inf).triu_(1)
        if document_starts is not None:
            places = torch.arange(document_starts.shape[1] * context.size, device=document_starts.device)
            self.places = zigzag(places[None], replace(context, rank=source))

    def __call__(self, scores: Tensor, rows: slice, seen: slice) -> Tensor:
        if self.is_own:
            size = rows.stop - rows.start
            scores[:, :, -size:].add_(self.later[:size, :size])
        if self.document_starts is not None:
            hidden = self.places[:, None, seen] < self.document_starts[:, rows, None]  # [B, rows, columns]
            scores.unflatten(0, (len(self.document_starts), -1)).masked_fill_(hidden[:, None], -math.inf)
        return scores


def _blocks(length: int, document_starts: DocumentStarts, context: Axis, source: int) -> list[tuple[slice, slice]]:
    """Blocks of this rank's rows, and the keys of rank `source` that they see, but for the end of their own.

    Of another rank's two chunks, those of a lower rank are before both and behind both of this rank's, and those of a higher
    rank are between them: half of the scores in either case.

    With documents on a CPU the keys begin at the first document of the block, unless ranks hold chunks of them. On a GPU they
    do not, because reading the starts of documents would make the host wait.
    """
    first = length // 2 if source > context.rank else 0
    size = _block_size(length, context)
    blocks = [slice(start, min(start + size, length)) for start in range(first, length, size)]
    seen = length // 2 if source < context.rank else length
    begins = [0] * len(blocks)
    if (
        context.size == 1 and type(document_starts) is Tensor and document_starts.device.type == "cpu"
    ):  # fake tensors hold no numbers
        begins = document_starts[:, ::size].amin(0).tolist()
    ends = [rows.stop if source == context.rank else seen for rows in blocks]
    return [(rows, slice(begin, end)) for rows, begin, end in zip(blocks, begins, ends, strict=True)]


def _block_size(length: int, context: Axis) -> int:
    return BLOCK if context.size == 1 else min(LONG_BLOCK, max(BLOCK, length // 8))


def _around(keys: Tensor, values: Tensor, dtype: torch.dtype, context: Axis) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each rank with its keys and values, this rank first: the next ones arrive while the caller computes."""
    packed = _pack(keys, values).to(dtype) if context.size > 1 else keys
    for step in range(context.size):
        shift = AsyncShift(packed, context) if step + 1 < context.size else None
        yield (context.rank - step) % context.size, keys, values
        if shift is not None:
            packed = shift.wait()
            keys, values = _unpack(packed, keys, values)


def _pack(keys: Tensor, values: Tensor) -> Tensor:
    return torch.cat([keys.flatten(), values.flatten()])


def _unpack(packed: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The keys and values in `packed`, in float32 and in the shapes of these."""
    of_keys, of_values = packed.float().split([keys.numel(), values.numel()])
    return of_keys.view_as(keys), of_values.view_as(values)


def _merge(out: Tensor, log_sum: Tensor, other: Tensor, other_log_sum: Tensor) -> None:
    """Turn the attention of rows to some keys, and the logarithm of its sum of weights, into those to other keys, too."""
    both = torch.logaddexp(log_sum, other_log_sum)
    out.mul_(log_sum.sub_(both).exp_()).add_(other.mul_(other_log_sum.sub_(both).exp_()))
    log_sum.copy_(both)


def _scale(q: Tensor) -> float:
    return q.shape[-1] ** -0.5


def _fold(x: Tensor, groups: int) -> Tensor:
    """[B, N, L * G, R] -> [G, B * L, N, R], contiguous, float32."""
    return x.float().unflatten(2, (-1, groups)).permute(3, 0, 2, 1, 4).flatten(1, 2).contiguous()


def _unfold(x: Tensor, like: Tensor) -> Tensor:
    """[G, B * L, N, R] -> [B, N, L * G, R], contiguous, the inverse of _fold."""
    return x.unflatten(1, (like.shape[0], -1)).permute(1, 3, 2, 0, 4).flatten(2, 3).contiguous()


def _parts(values: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
    """The parts of v and of e in [..., R + W]; in [..., R] the second is None."""
    size = v.shape[-1]
    return values[..., :size], values[..., size:] if values.shape[-1] > size else None


def _fold_rotated(q: Tensor, k: Tensor, v: Tensor, e: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled queries [G, S, N, R] and keys [S, N, R], rotated by e, and values [v | e] [S, N, R + W].

    Without e, queries and keys are not rotated and the values are v [S, N, R].
    """
    groups = q.shape[2] // k.shape[2]
    q = q.float()
    k = k.float()
    values = _fold(v, 1)[0]
    if e is not None:
        (q, k), values = rotate_qk(q, k, PositionState(e)), torch.cat([values, _fold(e, 1)[0]], dim=-1)
    queries = _fold(q, groups)  # shares memory with q if nothing was rotated or copied
    return queries * _scale(q) if e is None else queries.mul_(_scale(q)), _fold(k, 1)[0], values
