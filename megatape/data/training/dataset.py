"""A prepared split, cut into samples of a length chosen at training time."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

import numpy as np

from megatape.data.shards.cache import CacheFolder
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.arrangement import Span
from megatape.errors import UserError
from megatape.nn.targets import IGNORE_INDEX


class TrainingSample(NamedTuple):
    """N tokens and their targets.

    Attributes:
        tokens: int64 [N].
        targets: int64 [N], the next token of each, or IGNORE_INDEX.
        document_starts: int64 [N], the index of the first token of each token's document. None if documents see each other.
    """

    tokens: np.ndarray
    targets: np.ndarray
    document_starts: np.ndarray | None


class Dataset(StoredSplit, ABC):
    """Samples of one split, by index. Their order is not its concern (order.py).

    Args:
        directory: Path or URL of the data directory.
        split: Name of the split.
        sequence_length: Tokens of a sample (N).
        cache: Cache of a remote data directory; see SplitReader.
        window: Number of shards that training mixes at a time, so that no sample needs two shards. 0: all shards.

    Attributes:
        num_samples: Number of samples in the split.
        shard_samples: Number of samples in each shard, int64 [shards]. Only set with a window.
        filled: Share of all tokens that is not padding.
        num_skipped: Number of skipped documents, which are in no sample.

    Raises:
        UserError, FileNotFoundError: The data directory is missing or corrupted, N does not fit the split, or the cache cannot
            hold what is read at a time.
    """

    num_samples: int
    shard_samples: np.ndarray
    filled: float = 1.0
    num_skipped: int = 0

    def __init__(
        self, directory: str | Path, split: str, sequence_length: int, cache: CacheFolder | None = None, window: int = 0
    ) -> None:
        super().__init__(directory, split, cache)
        self.sequence_length = sequence_length
        self.window = window
        if cache is not None and cache.max_bytes is not None:
            self._check_room(cache.max_bytes)

    @abstractmethod
    def sample(self, index: int) -> TrainingSample:
        """Return sample `index`.

        Raises:
            IndexError: `index` is outside [0, num_samples).
        """

    @abstractmethod
    def spans(self, index: int) -> list[Span]:
        """Return the spans of sample `index` in the split's stream. Padding is in no span."""

    def _check(self, index: int) -> None:
        if not 0 <= index < self.num_samples:
            raise IndexError(f"sample {index} of {self.num_samples}")

    def _check_room(self, max_bytes: int) -> None:
        """Raise UserError if the cache cannot hold a window and the next one, or without a window all shards."""
        sizes = sorted((shard.bytes for shard in self.shards), reverse=True)
        held = "all shards, which training without data.window mixes"
        if self.window:
            held = f"two windows of {self.window} shards"
            sizes = sizes[: 2 * self.window]
        needed = sum(sizes)
        if needed > max_bytes:
            raise UserError(
                f"data.cache_bytes is {max_bytes:,}, but {held} of {self.name} take {needed:,}: raise it, or choose a smaller "
                "data.window"
            )


class TokenDataset(Dataset):
    """Sample i is tokens [i*N, i*N + N + 1) of the split's stream, across member, shard and document boundaries.

    Adjacent samples share one token, so every token is a target exactly once per epoch, except the stream's first token and
    the remainder shorter than N at its end. With a window each shard is cut separately, as if it were the stream.

    Args:
        mask_documents: Whether a document sees and predicts only itself, so that its end has no target.
        directory, split, sequence_length, cache, window: See Dataset.
    """

    def __init__(
        self,
        directory: str | Path,
        split: str,
        sequence_length: int,
        mask_documents: bool = False,
        cache: CacheFolder | None = None,
        window: int = 0,
    ) -> None:
        super().__init__(directory, split, sequence_length, cache, window)
        self._mask_documents = mask_documents
        if not 1 <= sequence_length < self.num_tokens:
            raise UserError(
                f"sequence length is {sequence_length}, but {self.name} has {self.num_tokens} tokens and a "
                f"sample takes one more than its length: choose 1 to {self.num_tokens - 1}, or prepare more text"
            )
        # Parts of the stream that are cut separately: boundaries, and the number of samples before each part.
        self._part_starts = [0, self.num_tokens]
        if window:
            self._part_starts = [0, *self.shard_ends.tolist()]
        self.shard_samples = (np.diff(self._part_starts) - 1) // sequence_length
        self._part_samples = [0, *np.cumsum(self.shard_samples).tolist()]
        self.num_samples = self._part_samples[-1]
        if self.num_samples == 0:
            raise UserError(
                f"data.window cuts every shard separately, and no shard of {self.name} holds a sample of {sequence_length} "
                "tokens: set it to 0"
            )

    def tokens(self, index: int) -> np.ndarray:
        """Return the tokens of sample `index` and the token after them, int64 [N + 1].

        Raises:
            IndexError: `index` is outside [0, num_samples).
        """
        begin = self._first_token(index)
        return self.stream(begin, begin + self.sequence_length + 1)

    def spans(self, index: int) -> list[Span]:
        return [Span(self._first_token(index), self.sequence_length)]

    def _first_token(self, index: int) -> int:
        """Return the index of a sample's first token in the stream."""
        self._check(index)
        part = bisect_right(self._part_samples, index) - 1
        index_in_part = index - self._part_samples[part]
        return self._part_starts[part] + index_in_part * self.sequence_length

    def sample(self, index: int) -> TrainingSample:
        ids = self.tokens(index)
        tokens = ids[:-1]
        targets = ids[1:]
        if not self._mask_documents:
            return TrainingSample(tokens, targets, None)
        ends = tokens == self.eos_id
        begins = np.r_[False, ends[:-1]]
        document_starts = np.maximum.accumulate(np.where(begins, np.arange(tokens.size), 0))
        own_targets = np.where(ends, IGNORE_INDEX, targets)
        return TrainingSample(tokens, own_targets, document_starts)
