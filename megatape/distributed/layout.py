"""How tensor-parallel ranks divide tokens, position channels and the vocabulary, and how other ranks divide a sample.

B batch, N tokens, L channels of width W, T tensor-parallel ranks. At T = 1 nothing is divided.

S sequence-parallel ranks (Ulysses, arXiv 2309.14509) divide a sample by tokens, and around attention by heads. A tensor of
heads is [B, N/S, heads, width] by tokens and [B, N, heads/S, width] by heads. At S = 1 nothing is divided.

P context-parallel ranks divide a sample first, into 2P chunks of which rank r holds the r-th and the r-th last: queries of
early tokens see few keys and those of late ones many, so that every rank computes the same number of scores. To everything
but attention such a share is a sample of N/P tokens.
"""

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import torch
from torch import Tensor

from megatape.distributed.asynchronous import AsyncAllToAll
from megatape.distributed.collectives import Pieces, all_to_all, every_rank, gather_tokens, paired
from megatape.distributed.mesh import Axis

Given = TypeVar("Given", Tensor, Tensor | None)
Parts = TypeVarTuple("Parts")  # tensors of heads, which have the same tokens and dtype, or None


def local_tokens(x: Given, axis: Axis) -> Given:
    """This rank's share [B, N/T] of something [B, N] that all ranks hold and that takes no gradient; None of None."""
    return x if x is None or axis.size == 1 else x.chunk(axis.size, dim=1)[axis.rank]


def all_tokens(x: Tensor, axis: Axis) -> Tensor:
    """The tokens of all ranks [B, N, ...] from those of each [B, N/T, ...]. Backward: the sum over ranks of each one's part."""
    return gather_tokens(x, axis)


def zigzag(x: Given, context: Axis) -> Given:
    """This context-parallel rank's two chunks [B, N/P, ...] of something [B, N, ...] that takes no gradient; None of None."""
    if x is None or context.size == 1:
        return x
    chunks = x.chunk(2 * context.size, dim=1)
    return torch.cat([chunks[context.rank], chunks[-1 - context.rank]], dim=1)


def states_before_chunks(
    after: Tensor, context: Axis, first: Tensor, combine: Callable[[Tensor, Tensor], Tensor] = torch.add
) -> Tensor:
    """The states of an encoding before this rank's two chunks, for sums or products along the sequence.

    Args:
        after: [B, 2, ...], the state after each of the chunks, as if the sample began with it.
        context: The context-parallel ranks.
        first: [B, ...], the state at the beginning of a sample.
        combine: An associative function of the states after earlier and after later tokens.

    Returns:
        [B, 2, ...], the state before each of the chunks.
    """
    all_after = gather_tokens(after, context).unflatten(1, (-1, 2))  # rank, early or late chunk
    state = first
    before = []
    for chunk in (*all_after[:, :, 0].unbind(1), *all_after[:, :, 1].flip(1).unbind(1)):
        before.append(state)
        state = combine(state, chunk)
    return torch.stack([before[context.rank], before[-1 - context.rank]], dim=1)


def own_rows(ids: Tensor, num_rows: int, axis: Axis) -> tuple[Tensor, Tensor]:
    """The row of each id among this rank's `num_rows` rows of the vocabulary, and whether the id is there; row 0 if not."""
    rows = ids - axis.rank * num_rows
    held = (rows >= 0) & (rows < num_rows) & (ids >= 0)
    return rows.where(held, 0), held


def whole_vocabulary(logits: Tensor, vocab_size: int, axis: Axis) -> Tensor:
    """From each rank's logits [B, N, ceil(V / T)] to those of all ranks [B, N, V], without a gradient."""
    return every_rank(logits, axis).movedim(0, 2).flatten(2)[..., :vocab_size]


def tokens_to_channels(e: Tensor | None, axis: Axis) -> AsyncAllToAll:
    """In flight, from all channels of this rank's tokens [B, N/T, L, W] to all tokens of its channels [B, N, L/T, W]."""
    return AsyncAllToAll(e, axis, HEADS, TOKENS)


def channels_to_tokens(e: Tensor, axis: Axis) -> Tensor:
    """The inverse: from all tokens of this rank's channels [B, N, L/T, W] to all channels of its tokens [B, N/T, L, W]."""
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


# Pieces of either have some tokens and some heads or channels, [B, N/T, L/T, W].
HEADS = Pieces(_split_heads, _join_heads)
TOKENS = Pieces(_split_tokens, _join_tokens)


def tokens_to_heads(axis: Axis, *parts: *Parts) -> tuple[*Parts]:
    """From all heads of this rank's tokens to all tokens of its heads, in one all-to-all. Backward: the inverse."""
    return _exchange(axis, parts, HEADS, TOKENS)


def heads_to_tokens(axis: Axis, *parts: *Parts) -> tuple[*Parts]:
    """The inverse: from all tokens of this rank's heads to all heads of its tokens."""
    return _exchange(axis, parts, TOKENS, HEADS)


def _exchange(axis: Axis, parts: Any, given: Pieces, wanted: Pieces) -> Any:
    """Exchange the pieces of all parts (see Parts) side by side; copied once before and once after."""
    if axis.size == 1:
        return parts
    sent = [given.split(part, axis.size) for part in parts if part is not None]
    packed = torch.cat([pieces.flatten(3) for pieces in sent], dim=-1)
    received = paired(packed, axis, all_to_all, all_to_all).split([pieces[0, 0, 0].numel() for pieces in sent], dim=-1)
    # Joined as copies, since a view that is saved for the backward pass would keep the memory of all parts.
    joined = (wanted.join(part.unflatten(-1, pieces.shape[3:])) for part, pieces in zip(received, sent, strict=True))
    return tuple(None if part is None else next(joined) for part in parts)
