"""Samples of one document each."""

from pathlib import Path

import numpy as np

from megatape.data.shards.cache import CacheFolder
from megatape.data.training.packing import PackedDataset, alone
from megatape.errors import UserError
from megatape.targets import IGNORE_INDEX


class DocumentDataset(PackedDataset):
    """Sample i is document i, `<s> text </s>` (without `<s>` if the tokenizer has none), and padding.

    Opening reads the whole split once to find its documents.

    Args:
        prompt_end: Text of one token; only what follows its first occurrence in a document is a target. None: the whole
            document.
        directory, split, sequence_length, cache: See Dataset.

    Raises:
        UserError: A document is longer than N + 1 tokens, or what Dataset raises.
    """

    masked = False

    def __init__(
        self,
        directory: str | Path,
        split: str,
        sequence_length: int,
        prompt_end: str | None = None,
        cache: CacheFolder | None = None,
    ) -> None:
        super().__init__(directory, split, sequence_length, cache)
        self._prompt_end = prompt_end
        if prompt_end is not None:
            self._prompt_end_id = self._single_token(prompt_end)
        members = (self._reader.member(number) for number in range(len(self._reader)))
        ends = [np.flatnonzero(ids == self.eos_id) + start + 1 for ids, start in zip(members, self._starts, strict=True)]
        boundaries = np.concatenate([[0], *ends])  # of documents, in the stream
        lengths = np.diff(boundaries)
        if lengths.size == 0 or lengths.max() > sequence_length + 1:
            found = f"the longest of its {lengths.size} has {lengths.max()} tokens" if lengths.size else "it has none"
            raise UserError(
                f"sequence length is {sequence_length}, so a document of {self.name} may have one token more, but {found}: "
                f"raise data.sequence_length, or set data.samples to packed"
            )
        self._arrange([(boundaries[:-1], lengths - 1, alone(lengths.size))])

    def _targets(self, begin: int, ids: np.ndarray) -> np.ndarray:
        if self._prompt_end is None:
            return ids[1:]
        answered = np.logical_or.accumulate(ids[:-1] == self._prompt_end_id)
        if not answered.any():
            raise UserError(
                f"a document of {self.name} has no {self._prompt_end!r}, so nothing in it would be a target: choose another "
                "data.prompt_end, or other data"
            )
        return np.where(answered, ids[1:], IGNORE_INDEX)

    def _single_token(self, text: str) -> int:
        ids = self.tokenizer().encode(text)
        if len(ids) != 1:
            raise UserError(
                f"data.prompt_end {text!r} is {len(ids)} tokens of the tokenizer of {self.name}: choose a text that is one "
                "token, or other data"
            )
        return ids[0]
