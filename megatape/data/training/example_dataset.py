"""Samples of examples with prompts and answers, one in each or as many as fit."""

from pathlib import Path
from tokenize import TokenError

import numpy as np

from megatape.data.shards.cache import CacheFolder
from megatape.data.shards.entries import Answers
from megatape.data.shards.hashes import check_file, content_hash
from megatape.data.training.arrangement import ArrangementInMemory, PackedPart
from megatape.data.training.best_fit import alone, pack
from megatape.data.training.dataset import TrainingSample
from megatape.data.training.packed_dataset import PackedDataset
from megatape.errors import UserError, content_errors
from megatape.nn.targets import IGNORE_INDEX, target_mask
from megatape.utils.retries import retry_transient_errors

# Key in the `source` of a data directory. If it is true, models read the end token in place of each answer.
HIDES_ANSWERS = "hides_answers"


class ExampleDataset(PackedDataset):
    """Samples of whole examples. Only tokens of answers are targets.

    Args:
        directory: See Dataset.
        split: See Dataset.
        sequence_length: See Dataset.
        mask_documents: Whether a sample has as many examples as fit, which do not see each other, instead of one.
        cache: See Dataset.

    Attributes:
        unigram_entropy: Entropy of the frequencies of targets, nats per token.

    Raises:
        UserError: The split is not one of prompts and answers, its longest example does not fit, or what Dataset raises.
    """

    def __init__(
        self,
        directory: str | Path,
        split: str,
        sequence_length: int,
        mask_documents: bool = False,
        cache: CacheFolder | None = None,
    ) -> None:
        super().__init__(directory, split, sequence_length, cache)
        entry = self.answers
        if entry is None:
            raise UserError(
                f"{self.name} has no prompts and answers, which data.samples examples needs: prepare them with `megatape "
                "prepare finetuning`, or set data.samples to packed"
            )
        if entry.longest > sequence_length + 1:
            raise UserError(
                f"sequence length is {sequence_length}, so an example of {self.name} may have one token more, but the longest "
                f"has {entry.longest}: raise data.sequence_length, or prepare with a lower `sequence_length`"
            )
        self.unigram_entropy = entry.unigram_entropy
        self.fingerprint = content_hash(self.fingerprint, entry.sha256)
        path = self.fetch(entry.file)
        answers = retry_transient_errors(lambda: read_answers(path, entry, self.num_tokens))
        self._answers = answers[:, 1:]
        last_answers = np.searchsorted(answers[:, 0], np.arange(entry.examples), side="right") - 1
        # Ends of the examples in the stream.
        ends = np.r_[0, self._answers[last_answers, 1]]
        inputs = np.diff(ends) - 1
        self.masked = mask_documents
        if mask_documents:
            packing = pack(inputs, sequence_length)
        else:
            packing = alone(inputs.size)
        self._arrange(ArrangementInMemory([PackedPart(ends[:-1], inputs, packing)]))

    def sample(self, index: int) -> TrainingSample:
        found = super().sample(index)
        if self.index.source.get(HIDES_ANSWERS):
            # The token after an answer may be the first one of the next example, which stays.
            is_answer = target_mask(found.targets[:-1]) & (found.tokens[1:] != self.bos_id)
            found.tokens[1:][is_answer] = self.eos_id
        return found

    def _targets(self, begin: int, ids: np.ndarray) -> np.ndarray:
        targets = np.full(ids.size - 1, IGNORE_INDEX, np.int64)
        first, last = np.searchsorted(self._answers[:, 0], (begin, begin + ids.size))
        for start, end in self._answers[first:last] - begin:
            targets[start - 1 : end - 1] = ids[start:end]
        return targets


def read_answers(path: Path, entry: Answers, num_tokens: int) -> np.ndarray:
    """Read the file of a split's answers.

    Args:
        path: Path of the file.
        entry: Entry of the index.
        num_tokens: Number of tokens of the split.

    Returns:
        Example, first token and end of each answer, int64 [answers, 3].

    Raises:
        UserError, FileNotFoundError: The file is missing, is not the one of the index, or does not fit the split.
        OSError: The file cannot be read.
    """
    check_file(path, entry.sha256)
    kinds = (ValueError, EOFError, MemoryError, SyntaxError, TokenError)
    with content_errors(f"{path}: no array of answers", "prepare the data again", kinds):
        answers = np.load(path, allow_pickle=False)
    if answers.dtype != np.int64 or answers.shape != (answers.size // 3, 3) or not answers.size:
        raise UserError(f"{path}: an array {answers.shape} of {answers.dtype}, not of answers: prepare the data again")
    examples, first, end = answers.T
    previous_end = np.r_[0, end[:-1]]
    # 1 for the first answer of an example, 0 for others.
    is_new = np.diff(examples, prepend=-1)
    # A target needs a token before it in its example.
    is_ordered = (first < end).all() and (first >= previous_end + is_new).all() and np.isin(is_new, (0, 1)).all()
    if not is_ordered or end[-1] != num_tokens or examples[-1] + 1 != entry.examples:
        raise UserError(f"{path}: its answers do not fit the {num_tokens} tokens of the split: prepare the data again")
    return answers
