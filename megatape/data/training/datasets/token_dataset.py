"""Samples tiling a split's token stream, for `data.samples: packed`."""

from bisect import bisect_right

import numpy as np

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.dataset import Dataset, TrainingSample
from megatape.data.training.packing.arrangement import Span
from megatape.errors import UserError
from megatape.nn.targets import IGNORE_INDEX


class TokenDataset(Dataset):
    """Sample i is tokens [i*N, i*N + N + 1) of the split's stream, across member, shard and document boundaries.

    Adjacent samples share one token. So every token is a target exactly once per epoch, except the stream's first token and
    a remainder shorter than N at its end. With a window, each shard is cut like a stream of its own.

    Args:
        split, sequence_length, window: See Dataset.
        mask_documents: Whether a document sees and predicts only itself. Its end token then has no target.

    Raises:
        UserError: N does not fit the split, or with a window no shard.
    """

    def __init__(
        self,
        split: StoredSplit,
        sequence_length: int,
        *,
        mask_documents: bool = False,
        window: int = 0,
    ) -> None:
        super().__init__(split, sequence_length, window)
        self.has_document_starts = mask_documents
        if not 1 <= sequence_length < split.num_tokens:
            raise UserError(
                f"sequence length is {sequence_length}, but {split.description} has {split.num_tokens} tokens and a "
                f"sample takes one more than its length: choose 1 to {split.num_tokens - 1}, or prepare more text"
            )
        # Boundaries of the stream's parts that are cut separately, and how many samples come before each part.
        part_starts = np.array([0, split.num_tokens])
        if window:
            part_starts = np.append(0, split.shard_ends)
        self.shard_samples = (np.diff(part_starts) - 1) // sequence_length
        part_samples = np.append(0, np.cumsum(self.shard_samples))
        self.num_samples = int(part_samples[-1])
        # Views give Python's integers faster than arrays.
        self._part_starts = part_starts.data
        self._part_samples = part_samples.data
        if self.num_samples == 0:
            raise UserError(
                f"data.window cuts every shard separately, and no shard of {split.description} holds a sample of "
                f"{sequence_length} tokens: set it to 0"
            )

    def tokens(self, index: int) -> np.ndarray:
        """Return the tokens of sample `index` and the token after them, int64 [N + 1].

        Raises:
            IndexError: `index` is outside [0, num_samples).
        """
        begin = self._first_token(index)
        return self.split.stream(begin, begin + self.sequence_length + 1)

    def spans(self, index: int) -> list[Span]:
        return [Span(self._first_token(index), self.sequence_length)]

    def fill(self, index: int, sample: TrainingSample) -> None:
        begin = self._first_token(index)
        ids = self.split.stored_ids(begin, begin + self.sequence_length + 1)
        sample.tokens[:] = ids[:-1]
        sample.targets[:] = ids[1:]
        if sample.document_starts is None:
            return
        ends = np.flatnonzero(ids[:-1] == self.split.eos_id)
        sample.targets[ends] = IGNORE_INDEX
        # First token of each document, and the end of the last one, whose length is 0 if it begins there.
        bounds = np.empty(ends.size + 2, np.int64)
        bounds[0] = 0
        bounds[1:-1] = ends + 1
        bounds[-1] = self.sequence_length
        sample.document_starts[:] = np.repeat(bounds[:-1], np.diff(bounds))

    def _first_token(self, index: int) -> int:
        """Return a sample's first token, as an index in the stream."""
        self._check_index(index)
        part = bisect_right(self._part_samples, index) - 1
        index_in_part = index - self._part_samples[part]
        begin: int = self._part_starts[part] + index_in_part * self.sequence_length
        return begin
