"""Blocks of query rows, the keys they see, and masking of single scores. Each rank has N tokens."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.distributed.layout import zigzag
from megatape.distributed.mesh import Axis

# Query rows per block: the fastest of 64, 128, 256 and 512, measured with 512 and 1024 tokens and 12 heads of 64.
BLOCK = 128
# Maximum number of query rows per block on context-parallel ranks. Their long samples have many blocks, and starting operations
# takes time.
LONG_BLOCK = 512


@dataclass(frozen=True)
class RowBlocks:
    """Splits a rank's query rows into blocks.

    Attributes:
        context_axis: Context-parallel ranks splitting each sample.
        min_rows: Minimum number of rows in a block.
        window: Number of tokens that a token attends to, or None for all earlier ones.
    """

    context_axis: Axis
    min_rows: int = BLOCK
    window: int | None = None

    def rows_of(self, length: int) -> int:
        """Return the number of rows per block, for `length` tokens on each rank."""
        if self.context_axis.size == 1:
            return self.min_rows
        return min(LONG_BLOCK, max(self.min_rows, length // 8))

    def pairs(
        self,
        length: int,
        document_starts: DocumentStarts,
        key_rank: int,
    ) -> list[tuple[slice, slice]]:
        """Return blocks of this rank's rows, each with the keys of rank `key_rank` that it sees.

        Rows and keys of the same tokens form a square on the diagonal, half of which is masked later.

        Each rank has an early and a late chunk of a sample. A lower rank's chunks surround this rank's, so all rows see its
        early chunk. A higher rank's chunks lie between this rank's, so only the late rows see its keys, all of them. Either
        way, half of the scores are computed.

        On a CPU, keys begin at the block's first document, unless ranks split samples. On a GPU, the host would have to wait
        for the values of `document_starts`. With a window, keys begin at the window of the block's first row, and blocks that
        see no key of the rank are left out.

        Args:
            length: Number of tokens on each rank.
            document_starts: Index of the first token of each token's document, [B, N], or None.
            key_rank: Context-parallel rank of the keys.
        """
        own_rank = self.context_axis.rank
        first_row = length // 2 if key_rank > own_rank else 0
        size = self.rows_of(length)
        blocks = [slice(start, min(start + size, length)) for start in range(first_row, length, size)]

        first_keys = [0] * len(blocks)
        if self.context_axis.size == 1 and _has_values_on_cpu(document_starts):
            assert document_starts is not None
            first_keys = document_starts[:, ::size].amin(0).tolist()

        pairs = []
        for rows, first_key in zip(blocks, first_keys, strict=True):
            if key_rank == own_rank:
                end = rows.stop
            elif key_rank < own_rank:
                end = length // 2
            else:
                end = length
            if self.window is not None:
                first_key = max(first_key, self._first_key_in_window(rows.start, length, key_rank))
            if first_key < end:
                pairs.append((rows, slice(first_key, end)))
        return pairs

    def _first_key_in_window(self, row: int, length: int, key_rank: int) -> int:
        """Return the index of a rank's first key in a row's window, or `length` if there is none.

        Args:
            row: Index of the row among this rank's.
            length: Number of tokens on each rank.
            key_rank: Context-parallel rank of the keys.
        """
        assert self.window is not None
        num_ranks = self.context_axis.size
        first_token = self._token(row, length, self.context_axis.rank) - self.window + 1
        if num_ranks == 1:
            return max(first_token, 0)
        chunk = length // 2
        for start in (0, chunk):
            token = self._token(start, length, key_rank)
            if first_token < token + chunk:
                return start + max(first_token - token, 0)
        return length

    def _token(self, index: int, length: int, rank: int) -> int:
        """Return the index in the sample of a rank's token, see `zigzag` in distributed/layout.py."""
        num_ranks = self.context_axis.size
        if num_ranks == 1:
            return index
        chunk = length // 2
        number = rank if index < chunk else 2 * num_ranks - 1 - rank
        return number * chunk + index % chunk


def _has_values_on_cpu(document_starts: DocumentStarts) -> bool:
    """Whether values can be read without waiting for a device. Fake tensors, a subclass, have none."""
    return type(document_starts) is Tensor and document_starts.device.type == "cpu"


def _hide_earlier_keys(scores: Tensor, last_hidden: int) -> None:
    """Set the scores of keys before the window to minus infinity.

    Args:
        scores: Scores of a block, [S, rows, columns].
        last_hidden: Column of the last key that the first row does not see. Each row hides one more. May be negative.
    """
    num_rows, num_columns = scores.shape[1:]
    num_partly_hidden = min(last_hidden + num_rows, num_columns)
    if num_partly_hidden > 0:
        earlier_keys = scores.new_full((num_rows, num_partly_hidden), -math.inf).tril_(last_hidden)
        scores[:, :, :num_partly_hidden].add_(earlier_keys)


def _later_starts(document_starts: DocumentStarts, window: int, queries: Tensor, context_axis: Axis) -> Tensor:
    """Return the first token that each of a rank's rows sees within its document and its window, [B or 1, N].

    Args:
        document_starts: Index of the first token of each token's document, [B, N], or None.
        window: Number of tokens that a token attends to.
        queries: Folded queries [G, S, N, R], for length and device.
        context_axis: Context-parallel ranks.
    """
    tokens = torch.arange(queries.shape[2] * context_axis.size, device=queries.device)
    window_starts = (zigzag(tokens[None], context_axis) - window + 1).clamp(min=0)
    if document_starts is None:
        return window_starts
    return torch.maximum(document_starts, window_starts)


class CausalMask:
    """Masks scores of later tokens, other documents, and tokens before the window, for the keys of one context-parallel rank.

    Args:
        document_starts: Index of the first token of each token's document, [B, N], or None.
        queries: Folded queries [G, S, N, R], for dtype and device.
        row_blocks: Blocks of rows.
        key_rank: Context-parallel rank of the keys.
    """

    def __init__(
        self,
        document_starts: DocumentStarts,
        queries: Tensor,
        row_blocks: RowBlocks,
        key_rank: int,
    ) -> None:
        context_axis = row_blocks.context_axis
        size = row_blocks.rows_of(queries.shape[2])
        self.window = row_blocks.window
        if self.window is not None and context_axis.size > 1:
            # The tokens of a rank's rows do not follow each other, so the window becomes a part of the starts.
            document_starts = _later_starts(document_starts, self.window, queries, context_axis)
            self.window = None
        self.document_starts = document_starts
        self.has_own_keys = key_rank == context_axis.rank
        self.later_keys = queries.new_full((size, size), -math.inf).triu_(1)
        if document_starts is not None:
            num_tokens = document_starts.shape[1] * context_axis.size
            tokens = torch.arange(num_tokens, device=document_starts.device)
            self.key_tokens = zigzag(tokens[None], replace(context_axis, rank=key_rank))  # [1, N]

    def hide(self, scores: Tensor, rows: slice, columns: slice) -> Tensor:
        """Set hidden scores to minus infinity.

        Args:
            scores: Scores of a block, [S, rows, columns].
            rows: Query rows of the block.
            columns: Keys of the block.

        Returns:
            The same tensor.
        """
        if self.has_own_keys:
            # The last keys are those of the rows themselves.
            size = rows.stop - rows.start
            scores[:, :, -size:].add_(self.later_keys[:size, :size])
        if self.window is not None:
            _hide_earlier_keys(scores, rows.start - self.window - columns.start)
        if self.document_starts is not None:
            hidden = self.key_tokens[:, None, columns] < self.document_starts[:, rows, None]  # [B, rows, columns]
            by_sample = scores.unflatten(0, (len(self.document_starts), -1))  # [B, L, rows, columns]
            by_sample.masked_fill_(hidden[:, None], -math.inf)
        return scores
