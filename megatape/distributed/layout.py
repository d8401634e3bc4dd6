"""Layouts of tensors across ranks, and exchanges between them.

Each axis of ranks splits something else. An axis of size 1 splits nothing.

* T tensor-parallel ranks hold N/T tokens each between sublayers, and all tokens of some heads or channels inside them. The
  vocabulary's rows are sharded across them.
* S sequence-parallel ranks (Ulysses, arXiv 2309.14509) hold N/S tokens each, [B, N/S, heads, width]. For attention they
  exchange these for all tokens of some heads, [B, N, heads/S, width].
* P context-parallel ranks split a sample first, into 2P chunks. Rank r holds chunk r and the r-th last one: early queries see
  few keys and late ones many, so this way every rank computes equally many scores. To everything except attention, a rank's
  two chunks are a sample of N/P tokens.

Shapes as in model/transformer.py, but N counts the tokens before a split.
"""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, cast

import torch
from torch import Tensor

from megatape.distributed.asynchronous import AsyncAllToAll
from megatape.distributed.collectives import Pieces, all_to_all, every_rank, gather_tokens, paired
from megatape.distributed.mesh import Axis

MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)

# Tensors by heads, with the same tokens and dtype, or None.
Parts = TypeVarTuple("Parts")


def local_tokens(x: MaybeTensor, axis: Axis) -> MaybeTensor:
    """Select this rank's tokens in a tensor that all ranks hold, [B, N] -> [B, N/T]. No gradient. None stays None."""
    if x is None or axis.size == 1:
        return x
    return x.chunk(axis.size, dim=1)[axis.rank]


def all_tokens(x: Tensor, axis: Axis) -> Tensor:
    """Gather the tokens of all ranks, [B, N/T, ...] -> [B, N, ...]. Backward: reduce-scatter."""
    return gather_tokens(x, axis)


def zigzag(x: MaybeTensor, context: Axis) -> MaybeTensor:
    """Select this context-parallel rank's two chunks, [B, N, ...] -> [B, N/P, ...]. No gradient. None stays None."""
    if x is None or context.size == 1:
        return x
    chunks = x.chunk(2 * context.size, dim=1)
    return torch.cat([chunks[context.rank], chunks[-1 - context.rank]], dim=1)


def states_before_chunks(
    after: Tensor, context: Axis, first: Tensor, combine: Callable[[Tensor, Tensor], Tensor] = torch.add
) -> Tensor:
    """Return an encoding's state before each of this rank's two chunks, for sums or products along the sequence.

    Args:
        after: State after each chunk, as if the sample started with this chunk, [B, 2, ...].
        context: Context-parallel ranks.
        first: State at the start of a sample, [B, ...].
        combine: Associative function of two states, after earlier and after later tokens.

    Returns:
        States before the chunks, [B, 2, ...].
    """
    all_after = gather_tokens(after, context).unflatten(1, (-1, 2))  # [B, rank, early or late chunk, ...]
    early_chunks = all_after[:, :, 0].unbind(1)
    late_chunks = all_after[:, :, 1].flip(1).unbind(1)
    state = first
    before = []
    for chunk in (*early_chunks, *late_chunks):
        before.append(state)
        state = combine(state, chunk)
    return torch.stack([before[context.rank], before[-1 - context.rank]], dim=1)


def local_rows(ids: Tensor, num_rows: int, axis: Axis) -> tuple[Tensor, Tensor]:
    """Return the index of each token id among this rank's `num_rows` vocabulary rows, else 0, and whether it is one of them."""
    rows = ids - axis.rank * num_rows
    is_local = (rows >= 0) & (rows < num_rows) & (ids >= 0)
    return rows.where(is_local, 0), is_local


def gather_vocabulary(logits: Tensor, vocab_size: int, axis: Axis) -> Tensor:
    """Gather the logits of all ranks, [B, N, ceil(V / T)] -> [B, N, V]. No gradient."""
    return every_rank(logits, axis).movedim(0, 2).flatten(2)[..., :vocab_size]


def tokens_to_channels(e: Tensor | None, axis: Axis) -> AsyncAllToAll:
    """Start an all-to-all from token shards to channel shards, [B, N/T, L, W] -> [B, N, L/T, W]."""
    return AsyncAllToAll(e, axis, HEADS, TOKENS)


def channels_to_tokens(e: Tensor, axis: Axis) -> Tensor:
    """Exchange channel shards for token shards, [B, N, L/T, W] -> [B, N/T, L, W]."""
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


# Splitting by heads or channels, and by tokens. Pieces of both have some tokens and some heads, [B, N/T, L/T, W].
HEADS = Pieces(_split_heads, _join_heads)
TOKENS = Pieces(_split_tokens, _join_tokens)


def tokens_to_heads(axis: Axis, *parts: *Parts) -> tuple[*Parts]:
    """Exchange all heads of this rank's tokens for all tokens of its heads, in a single all-to-all."""
    return _exchange(axis, parts, HEADS, TOKENS)


def heads_to_tokens(axis: Axis, *parts: *Parts) -> tuple[*Parts]:
    """Exchange all tokens of this rank's heads for all heads of its tokens."""
    return _exchange(axis, parts, TOKENS, HEADS)


def _exchange(axis: Axis, parts: tuple[*Parts], split_by: Pieces, join_by: Pieces) -> tuple[*Parts]:
    """Exchange several tensors (see Parts) side by side, with one copy before and one after. Backward: the inverse."""
    if axis.size == 1:
        return parts
    tensors = cast("tuple[Tensor | None, ...]", parts)
    sent = [split_by.split(part, axis.size) for part in tensors if part is not None]
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
        # `join` copies. If autograd saved a view, the memory of all parts would stay in use.
        results.append(join_by.join(pieces.unflatten(-1, pieces_sent.shape[3:])))
    return cast("tuple[*Parts]", tuple(results))
