"""Base class of datasets, which cut a split of a data directory into samples with N tokens.

token_dataset.py cuts the token stream every N tokens. packed_dataset.py packs whole documents (best_fit_dataset.py,
document_dataset.py) or prompts with answers (example_dataset.py) in samples. open_dataset.py chooses by `data.samples`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.packing.arrangement import Span


class TrainingSample(NamedTuple):
    """N tokens and their targets. Datasets write them into these arrays.

    Attributes:
        tokens: Input ids, int64 [N].
        targets: Each token's next token, or IGNORE_INDEX, int64 [N].
        document_starts: First token of each token's document, as an index in the sample, int64 [N]. None if documents see
            each other.
    """

    tokens: np.ndarray
    targets: np.ndarray
    document_starts: np.ndarray | None


class SampleRows(NamedTuple):
    """Samples of a batch, one a row. The fields are those of TrainingSample, int64 [b, N]."""

    tokens: np.ndarray
    targets: np.ndarray
    document_starts: np.ndarray | None

    @classmethod
    def empty(cls, num_samples: int, length: int, has_document_starts: bool) -> "SampleRows":
        """Return rows that datasets have yet to fill."""
        shape = (num_samples, length)
        document_starts = None
        if has_document_starts:
            document_starts = np.empty(shape, np.int64)
        return cls(np.empty(shape, np.int64), np.empty(shape, np.int64), document_starts)

    def row(self, number: int) -> TrainingSample:
        """Return a sample, which shares the memory of its row."""
        document_starts = None
        if self.document_starts is not None:
            document_starts = self.document_starts[number]
        return TrainingSample(self.tokens[number], self.targets[number], document_starts)

    def cut(self, length: int) -> "SampleRows":
        """Cut the samples into sequences of `length` tokens, which divides N."""
        if length == self.tokens.shape[1]:
            return self
        document_starts = None
        if self.document_starts is not None:
            starts = self.document_starts.reshape(-1, self.tokens.shape[1] // length, length)
            begins = np.arange(0, self.tokens.shape[1], length)
            document_starts = np.maximum(starts - begins[:, None], 0).reshape(-1, length)
        return SampleRows(self.tokens.reshape(-1, length), self.targets.reshape(-1, length), document_starts)


class Dataset(ABC):
    """Samples of one split, by index. mixing/order.py decides the order for training.

    Args:
        split: Split to cut into samples.
        sequence_length: Tokens per sample (N).
        window: Shards that training mixes at a time, so that no sample crosses shards. 0: all shards.

    Attributes:
        num_samples: Samples in the split.
        shard_samples: Samples per shard, int64 [shards]. Only meaningful with a window.
        filled: Share of tokens that are not padding.
        num_skipped: Documents skipped, so in no sample.
        unigram_entropy: Entropy of the target frequencies, nats per token.
        fingerprint: sha256 over the tokens, the tokenizer and the answers.
        has_document_starts: Whether samples have document starts.
    """

    num_samples: int
    shard_samples: np.ndarray
    filled: float = 1.0
    num_skipped: int = 0
    has_document_starts: bool = False

    def __init__(self, split: StoredSplit, sequence_length: int, window: int = 0) -> None:
        self.split = split
        self.sequence_length = sequence_length
        self.window = window
        self.unigram_entropy = split.unigram_entropy
        self.fingerprint = split.fingerprint

    def sample(self, index: int) -> TrainingSample:
        """Return sample `index`. Raises like `fill`."""
        sample = SampleRows.empty(1, self.sequence_length, self.has_document_starts).row(0)
        self.fill(index, sample)
        return sample

    def samples(self, indices: Sequence[int]) -> SampleRows:
        """Return some samples, one a row. Raises like `fill`."""
        rows = SampleRows.empty(len(indices), self.sequence_length, self.has_document_starts)
        for number, index in enumerate(indices):
            self.fill(index, rows.row(number))
        return rows

    @abstractmethod
    def fill(self, index: int, sample: TrainingSample) -> None:
        """Write sample `index` into arrays, which saves copying it into a batch.

        Args:
            index: Index of the sample.
            sample: Arrays to write to. They have document starts if the dataset has.

        Raises:
            IndexError: `index` is outside [0, num_samples).
            UserError: The split is corrupted.
            OSError: The split cannot be read.
        """

    @abstractmethod
    def spans(self, index: int) -> list[Span]:
        """Return the stream's parts that make up sample `index`. Padding is in no span."""

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self.num_samples:
            raise IndexError(f"sample {index} of {self.num_samples}")
