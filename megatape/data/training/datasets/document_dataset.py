"""One document per sample, for `data.samples: documents`."""

import numpy as np

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.packed_dataset import PackedDataset
from megatape.data.training.packing.arrangement import ArrangementInMemory, PackedPart
from megatape.data.training.packing.best_fit import alone
from megatape.errors import UserError
from megatape.nn.targets import IGNORE_INDEX


class DocumentDataset(PackedDataset):
    """Sample i is document i, `<s> text </s>` (without `<s>` if the tokenizer has none), followed by padding.

    Args:
        split, sequence_length: See Dataset.
        prompt_end: Text that is a single token. Only tokens after its first occurrence in a document are targets, and opening
            the dataset reads the whole split. None: all tokens are targets.
        skip_without_prompt_end: Whether to skip documents without this token instead of raising an error.

    Raises:
        UserError: A document is longer than N + 1 tokens, or lacks the prompt end.
    """

    def __init__(
        self,
        split: StoredSplit,
        sequence_length: int,
        *,
        prompt_end: str | None = None,
        skip_without_prompt_end: bool = False,
    ) -> None:
        # Id of the prompt end; None if all tokens are targets.
        self._prompt_end_id: int | None = None
        if prompt_end is not None:
            self._prompt_end_id = _single_token(split, prompt_end)
        lengths = _document_lengths(split, sequence_length)
        begins = np.cumsum(lengths) - lengths
        num_skipped = 0
        if self._prompt_end_id is not None:
            has_answer = _documents_with(split, begins, self._prompt_end_id)
            num_skipped = int(np.count_nonzero(~has_answer))
            if num_skipped == lengths.size or (num_skipped and not skip_without_prompt_end):
                raise _missing_prompt_end(split, prompt_end, np.flatnonzero(~has_answer))
            begins = begins[has_answer]
            lengths = lengths[has_answer]
        part = PackedPart(begins, lengths - 1, alone(lengths.size))
        super().__init__(split, sequence_length, ArrangementInMemory([part]), has_document_starts=False)
        self.num_skipped = num_skipped

    def _targets(self, begin: int, ids: np.ndarray) -> np.ndarray:
        if self._prompt_end_id is None:
            return ids[1:]
        is_answer = np.logical_or.accumulate(ids[:-1] == self._prompt_end_id)
        return np.where(is_answer, ids[1:].astype(np.int64), IGNORE_INDEX)


def _single_token(split: StoredSplit, prompt_end: str) -> int:
    ids = split.tokenizer().encode(prompt_end)
    if len(ids) != 1:
        raise UserError(
            f"data.prompt_end {prompt_end!r} is {len(ids)} tokens of the tokenizer of {split.description}: choose a text that "
            "is one token, or other data"
        )
    return ids[0]


def _document_lengths(split: StoredSplit, sequence_length: int) -> np.ndarray:
    """Return each document's length in tokens, int64 [documents]. Raises UserError unless each fits into a sample."""
    lengths = np.concatenate([np.empty(0, np.int64), *split.document_lengths()])
    if lengths.size == 0 or lengths.max() > sequence_length + 1:
        reason = "it has none"
        if lengths.size:
            reason = f"the longest of its {lengths.size} has {lengths.max()} tokens"
        raise UserError(
            f"sequence length is {sequence_length}, so a document of {split.description} may have one token more, but "
            f"{reason}: raise data.sequence_length, or set data.samples to packed"
        )
    return lengths


def _documents_with(split: StoredSplit, begins: np.ndarray, token: int) -> np.ndarray:
    """Read a split and return which documents contain a token, bool [documents].

    `begins` are the documents' first tokens, as indices in the stream, int64 [documents].
    """
    contains = np.zeros(begins.size, np.bool_)
    num_read = 0
    for ids in split.members():
        matches = num_read + np.flatnonzero(ids == token)
        contains[begins.searchsorted(matches, side="right") - 1] = True
        num_read += ids.size
    return contains


def _missing_prompt_end(split: StoredSplit, prompt_end: str | None, documents: np.ndarray) -> UserError:
    """Return the error about documents without a prompt end, given their numbers, int64 [n]."""
    first = f"document {documents[0]:,}"
    if split.has_tables:
        first += f" ({split.tables.document(int(documents[0])).location})"
    return UserError(
        f"documents of {split.description} without the data.prompt_end {prompt_end!r}: {documents.size:,}, the first is "
        f"{first}. Nothing in them would be a target: set data.missing_prompt_end to skip, or choose another data.prompt_end"
    )
