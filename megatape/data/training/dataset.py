"""Base class of datasets, which cut a split of a data directory into samples with N tokens.

token_dataset.py cuts the token stream every N tokens. packed_dataset.py places whole documents (best_fit_dataset.py,
document_dataset.py) or prompts with answers (example_dataset.py) in samples. open_dataset.py chooses by `data.samples`.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.arrangement import Span


class TrainingSample(NamedTuple):
    """N tokens and their targets.

    Attributes:
        tokens: Input ids, int64 [N].
        targets: Each token's next token, or IGNORE_INDEX, int64 [N].
        document_starts: First token of each token's document, as an index in the sample, int64 [N]. None if documents see
            each other.
    """

    tokens: np.ndarray
    targets: np.ndarray
    document_starts: np.ndarray | None


class Dataset(ABC):
    """Samples of one split, by index. order.py decides the order for training.

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
    """

    num_samples: int
    shard_samples: np.ndarray
    filled: float = 1.0
    num_skipped: int = 0

    def __init__(self, split: StoredSplit, sequence_length: int, window: int = 0) -> None:
        self.split = split
        self.sequence_length = sequence_length
        self.window = window
        self.unigram_entropy = split.unigram_entropy
        self.fingerprint = split.fingerprint

    @abstractmethod
    def sample(self, index: int) -> TrainingSample:
        """Return sample `index`.

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
