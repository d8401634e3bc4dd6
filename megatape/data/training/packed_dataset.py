"""Base class of the datasets whose samples are whole documents or examples."""

import numpy as np

from megatape.data.training.arrangement import Arrangement, Span
from megatape.data.training.dataset import Dataset, TrainingSample
from megatape.errors import UserError
from megatape.nn.targets import IGNORE_INDEX


class PackedDataset(Dataset):
    """Samples of spans of the stream that do not see each other, then padding (the end token) without targets.

    A span of n inputs has n + 1 tokens: its last token is only a target.

    Subclasses call `_arrange`, and may choose the targets of a span.

    Attributes:
        masked: Whether samples have document starts. Samples of a single span need none.
    """

    masked = True

    def _arrange(self, arrangement: Arrangement) -> None:
        """Set the samples of the split."""
        self._arrangement = arrangement
        self.shard_samples = arrangement.shard_samples
        self.num_samples = arrangement.num_samples
        self.filled = arrangement.num_inputs / max(1, self.num_samples * self.sequence_length)

    def sample(self, index: int) -> TrainingSample:
        self._check(index)
        tokens = np.full(self.sequence_length, self.eos_id, np.int64)
        targets = np.full(self.sequence_length, IGNORE_INDEX, np.int64)
        document_starts = np.empty(self.sequence_length, np.int64)
        end = 0
        for begin, size in self._arrangement.spans(index):
            if not (size >= 1 and end + size <= self.sequence_length and 0 <= begin < self.num_tokens - size):
                raise UserError(
                    f"sample {index} of {self.name} has spans outside of it or of the split: remove its packing-*.bin, and "
                    "the next run writes it again"
                )
            ids = self.stream(begin, begin + size + 1)
            start = end
            end = end + size
            tokens[start:end] = ids[:-1]
            targets[start:end] = self._targets(begin, ids)
            document_starts[start:end] = start
        document_starts[end:] = end
        if not self.masked:
            return TrainingSample(tokens, targets, None)
        return TrainingSample(tokens, targets, document_starts)

    def spans(self, index: int) -> list[Span]:
        self._check(index)
        return self._arrangement.spans(index)

    def _targets(self, begin: int, ids: np.ndarray) -> np.ndarray:
        """Return the targets of a span's inputs, int64 [n].

        Args:
            begin: First token of the span in the stream.
            ids: Tokens of the span, int64 [n + 1].
        """
        return ids[1:]
