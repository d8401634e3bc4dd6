"""Samples of one document each."""

from pathlib import Path

import numpy as np

from megatape.data.shards.cache import CacheFolder
from megatape.data.training.arrangement import ArrangementInMemory, PackedPart
from megatape.data.training.best_fit import alone
from megatape.data.training.packed_dataset import PackedDataset
from megatape.errors import UserError
from megatape.nn.targets import IGNORE_INDEX


class DocumentDataset(PackedDataset):
    """Sample i is document i, `<s> text </s>` (without `<s>` if the tokenizer has none), followed by padding.

    Args:
        directory: See Dataset.
        split: See Dataset.
        sequence_length: See Dataset.
        prompt_end: Text of one token. Only tokens after its first occurrence in a document are targets. None: all tokens. If
            set, opening the dataset reads the split.
        cache: See Dataset.
        skip_without_prompt_end: Whether to skip documents without this token instead of raising an error.

    Raises:
        UserError: A document is longer than N + 1 tokens or has no prompt end, or what Dataset raises.
    """

    masked = False

    def __init__(
        self,
        directory: str | Path,
        split: str,
        sequence_length: int,
        prompt_end: str | None = None,
        cache: CacheFolder | None = None,
        skip_without_prompt_end: bool = False,
    ) -> None:
        super().__init__(directory, split, sequence_length, cache)
        self._prompt_end = prompt_end
        self._prompt_end_id = -1
        if prompt_end is not None:
            ids = self.tokenizer().encode(prompt_end)
            if len(ids) != 1:
                raise UserError(
                    f"data.prompt_end {prompt_end!r} is {len(ids)} tokens of the tokenizer of {self.name}: choose a text that "
                    "is one token, or other data"
                )
            self._prompt_end_id = ids[0]
        lengths = np.concatenate([np.empty(0, np.int64), *self.document_lengths()])
        if lengths.size == 0 or lengths.max() > sequence_length + 1:
            found = "it has none"
            if lengths.size:
                found = f"the longest of its {lengths.size} has {lengths.max()} tokens"
            raise UserError(
                f"sequence length is {sequence_length}, so a document of {self.name} may have one token more, but {found}: "
                f"raise data.sequence_length, or set data.samples to packed"
            )
        begins = np.cumsum(lengths) - lengths
        if prompt_end is not None:
            with_answer = self._with_answer(begins)
            self.num_skipped = int(np.count_nonzero(~with_answer))
            if self.num_skipped == lengths.size or (self.num_skipped and not skip_without_prompt_end):
                raise self._no_answer(np.flatnonzero(~with_answer))
            begins = begins[with_answer]
            lengths = lengths[with_answer]
        part = PackedPart(begins, lengths - 1, alone(lengths.size))
        self._arrange(ArrangementInMemory([part]))

    def _with_answer(self, begins: np.ndarray) -> np.ndarray:
        """Read the split and return which documents have the prompt end, bool [documents].

        Args:
            begins: First token of each document in the stream, int64 [documents].
        """
        found = np.zeros(begins.size, np.bool_)
        num_read = 0
        for ids in self.members():
            places = num_read + np.flatnonzero(ids == self._prompt_end_id)
            found[begins.searchsorted(places, side="right") - 1] = True
            num_read += ids.size
        return found

    def _no_answer(self, missing: np.ndarray) -> UserError:
        """Return the error about documents without a prompt end.

        Args:
            missing: Numbers of these documents, int64 [n].
        """
        first = f"document {missing[0]:,}"
        if self.has_tables:
            first += f" ({self.tables.document(int(missing[0])).place})"
        return UserError(
            f"documents of {self.name} without the data.prompt_end {self._prompt_end!r}: {missing.size:,}, the first is "
            f"{first}. Nothing in them would be a target: set data.missing_prompt_end to skip, or choose another "
            "data.prompt_end"
        )

    def _targets(self, begin: int, ids: np.ndarray) -> np.ndarray:
        if self._prompt_end is None:
            return ids[1:]
        answered = np.logical_or.accumulate(ids[:-1] == self._prompt_end_id)
        return np.where(answered, ids[1:], IGNORE_INDEX)
