"""How tensor-parallel ranks divide tokens, position channels and the vocabulary, and how other ranks divide a sample.

Shapes as in model/transformer.py. At T = 1 nothing is divided.

S sequence-parallel ranks (Ulysses, arXiv 2309.14509) divide a sample by tokens, and around attention by heads. A tensor of
heads is [B, N/S, heads, width] by tokens and [B, N, heads/S, width] by heads. At S = 1 nothing is divided.

P context-parallel ranks divide a sample first, into 2P chunks of which rank r holds the r-th and the r-th last: queries of
early tokens see few keys and those of late ones many, so that every rank computes the same number of scores. To everything
but attention such a share is a sample of N/P tokens.
"""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, cast

import torch
from torch import Tensor

from megatape.distributed.asynchronous import AsyncAllToAll
from megatape.distributed.collectives import Pieces, all_to_all, every_rank, gather_tokens, paired
from megatape.distributed.mesh import Axis

Given = TypeVar("Given", Tensor, Tensor | None)

# Tensors of heads, which have the same tokens and dtype, or None
Parts = TypeVarTuple("Parts")


def local_tokens(x: Given, axis: Axis) -> Given:
    """Return this rank's share [B, N/T] of a tensor [B, N] that all ranks hold and that takes no gradient; None of None."""
    if x is None or axis.size == 1:
        return x
    return x.chunk(axis.size, dim=1)[axis.rank]


def all_tokens(x: Tensor, axis: Axis) -> Tensor:
    """Gather the tokens of all ranks, [B, N/T, ...] -> [B, N, ...]. Backward: sum each rank's part over the ranks."""
    return gather_tokens(x, axis)


def zigzag(x: Given, context: Axis) -> Given:
    """Return this context-parallel rank's two chunks [B, N/P, ...] of a tensor [B, N, ...] without a gradient; None of None."""
    if x is None or context.size == 1:
        return x
    chunks = x.chunk(2 * context.size, dim=1)
    return torch.cat([chunks[context.rank], chunks[-1 - context.rank]], dim=1)


def states_before_chunks(
    after: Tensor, context: Axis, first: Tensor, combine: Callable[[Tensor, Tensor], Tensor] = torch.add
) -> Tensor:
    """Return the states of an encoding before this rank's two chunks, for sums or products along the sequence.

    Args:
        after: State after each of the chunks, as if the sample began with it, [B, 2, ...].
        context: The context-parallel ranks.
        first: State at the beginning of a sample, [B, ...].
        combine: An associative function of the states after earlier and after later tokens.

    Returns:
        [B, 2, ...], the state before each of the chunks.
    """
    # [B, rank, early or late chunk, ...]
    all_after = gather_tokens(after, context).unflatten(1, (-1, 2))
    early_chunks = all_after[:, :, 0].unbind(1)
    late_chunks = all_after[:, :, 1].flip(1).unbind(1)
    state = first
    before = []
    for chunk in (*early_chunks, *late_chunks):
        before.append(state)
        state = combine(state, chunk)
    return torch.stack([before[context.rank], before[-1 - context.rank]], dim=1)


def own_rows(ids: Tensor, num_rows: int, axis: Axis) -> tuple[Tensor, Tensor]:
    """Return the row of each id among this rank's `num_rows` rows of the vocabulary, and whether it has one; row 0 if not."""
    rows = ids - axis.rank * num_rows
    held = (rows >= 0) & (rows < num_rows) & (ids >= 0)
    return rows.where(held, 0), held


def whole_vocabulary(logits: Tensor, vocab_size: int, axis: Axis) -> Tensor:
    """Gather the logits of all ranks, [B, N, ceil(V / T)] -> [B, N, V], without a gradient."""
    return every_rank(logits, axis).movedim(0, 2).flatten(2)[..., :vocab_size]


def tokens_to_channels(e: Tensor | None, axis: Axis) -> AsyncAllToAll:
    """Start an all-to-all from token shards to channel shards, [B, N/T, L, W] -> [B, N, L/T, W]."""
    return AsyncAllToAll(e, axis, HEADS, TOKENS)


def channels_to_tokens(e: Tensor, axis: Axis) -> Tensor:
    """Exchange channel shards for token shards, [B, N, L/T, W] -> [B, N/T, L, W]: the inverse."""
    (exchanged,) = heads_to_tokens(axis, e)
    return exchanged


def _split_heads(x: Tensor, size: int) -> Tensor:
    return x.unflatten(2, (size, -1)).permute(2, 0, 1, 3, 4)


def _join_heads(pieces: Tensor) -> Tensor:
    return pieces.permute(1, 2, 0, 3, 4).flatten(2, 3).contiguous()


def _split_tokens(x: Tensor, size: int) -> Tensor:
    return x.unflatten(1, (size, -1)).transpose(0, 1)


def _join_tokens(pieces: Tensor) -> Tensor:
    return pieces.transpose(0, 1).flatten(1, 2).contiguous()


# Pieces of both have some tokens and some heads or channels, [B, N/T, L/T, W].
HEADS = Pieces(_split_heads, _join_heads)
TOKENS = Pieces(_split_tokens, _join_tokens)


def tokens_to_heads(axis: Axis, *parts: *Parts) -> tuple[*Parts]:
    """Exchange all heads of this rank's tokens for all tokens of its heads, in one all-to-all. Backward: the inverse."""
    return _exchange(axis, parts, HEADS, TOKENS)


def heads_to_tokens(axis: Axis, *parts: *Parts) -> tuple[*Parts]:
    """Exchange all tokens of this rank's heads for all heads of its tokens: the inverse."""
    return _exchange(axis, parts, TOKENS, HEADS)


def _exchange(axis: Axis, parts: tuple[*Parts], given: Pieces, wanted: Pieces) -> tuple[*Parts]:
    """Exchange the pieces of all parts (see Parts) side by side, with one copy before and one after."""
    if axis.size == 1:
        return parts
    tensors = cast(tuple[Tensor | None, ...], parts)
    sent = [given.split(part, axis.size) for part in tensors if part is not None]
    packed = torch.cat([pieces.flatten(3) for pieces in sent], dim=-1)
    exchanged = paired(packed, axis, all_to_all, all_to_all)
    widths = [pieces[0, 0, 0].numel() for pieces in sent]
    received = iter(zip(exchanged.split(widths, dim=-1), sent, strict=True))
    results: list[Tensor | None] = []
    for part in tensors:
        if part is None:
            results.append(None)
            continue
        pieces, pieces_sent = next(received)
        # A copy: a view that is saved for the backward pass would keep the memory of all parts.
        results.append(wanted.join(pieces.unflatten(-1, pieces_sent.shape[3:])))
    return cast(tuple[*Parts], tuple(results))
