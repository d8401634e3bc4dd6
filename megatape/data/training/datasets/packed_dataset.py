"""Base class of datasets whose samples are made of complete documents or examples.

packing/arrangement.py lists the spans of each sample. packing/best_fit.py packs them.
"""

import numpy as np

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.dataset import Dataset, TrainingSample
from megatape.data.training.packing.arrangement import Arrangement, Span
from megatape.errors import UserError
from megatape.nn.targets import IGNORE_INDEX


class PackedDataset(Dataset):
    """Samples made of spans that do not see each other, followed by padding: end tokens without targets.

    A span with n inputs has n + 1 tokens: its last token is only a target. Subclasses build the arrangement, and may override
    `_targets`.

    Args:
        split, sequence_length, window: See Dataset.
        arrangement: Spans in each sample.
        has_document_starts: Whether samples have document starts. Samples with a single span need none.
    """

    def __init__(
        self,
        split: StoredSplit,
        sequence_length: int,
        arrangement: Arrangement,
        *,
        has_document_starts: bool = True,
        window: int = 0,
    ) -> None:
        super().__init__(split, sequence_length, window)
        self._arrangement = arrangement
        self.has_document_starts = has_document_starts
        self.shard_samples = arrangement.shard_samples
        self.num_samples = arrangement.num_samples
        self.filled = arrangement.num_inputs / max(1, self.num_samples * sequence_length)

    def fill(self, index: int, sample: TrainingSample) -> None:
        tokens, targets, document_starts = sample
        end = 0
        for span in self.spans(index):
            start = end
            begin, num_inputs = span
            end = start + num_inputs
            self._check_span(index, span, end)
            ids = self.split.stored_ids(begin, begin + num_inputs + 1)
            tokens[start:end] = ids[:-1]
            targets[start:end] = self._targets(begin, ids)
            if document_starts is not None:
                document_starts[start:end] = start
        tokens[end:] = self.split.eos_id
        targets[end:] = IGNORE_INDEX
        if document_starts is not None:
            document_starts[end:] = end

    def spans(self, index: int) -> list[Span]:
        self._check_index(index)
        return self._arrangement.spans(index)

    def _targets(self, begin: int, ids: np.ndarray) -> np.ndarray:
        """Return the targets of a span's inputs, [n].

        Args:
            begin: The span's first token, as an index in the stream.
            ids: Tokens of the span as they are stored, [n + 1].
        """
        return ids[1:]

    def _check_span(self, index: int, span: Span, end: int) -> None:
        """Raise UserError for a span outside the split or the sample: a stored arrangement may be hostile."""
        fits_sample = span.inputs >= 1 and end <= self.sequence_length
        fits_split = 0 <= span.begin < self.split.num_tokens - span.inputs
        if not fits_sample or not fits_split:
            raise UserError(
                f"sample {index} of {self.split.description} has spans outside of it or of the split: remove its "
                "packing-*.bin, and the next run writes it again"
            )
