"""Samples with prompts and answers, for `data.samples: examples`."""

from pathlib import Path
from tokenize import TokenError

import numpy as np

from megatape.data.shards.entries import Answers
from megatape.data.shards.hashes import check_file, content_hash
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.dataset import TrainingSample
from megatape.data.training.datasets.packed_dataset import PackedDataset
from megatape.data.training.packing.arrangement import ArrangementInMemory, PackedPart
from megatape.data.training.packing.best_fit import alone, pack
from megatape.errors import UserError, content_errors, flag
from megatape.nn.targets import IGNORE_INDEX, target_mask
from megatape.utils.files.retries import retry_transient_errors

# Key in a data directory's `source`. If true, models read an end token instead of each answer.
HIDES_ANSWERS = "hides_answers"


class ExampleDataset(PackedDataset):
    """Samples with complete examples. Only tokens in answers are targets.

    Args:
        split, sequence_length: See Dataset.
        pack_examples: Whether to pack as many examples as fit into a sample, instead of one. They do not see each other.

    Raises:
        UserError: The split does not hold prompts and answers, or its longest example does not fit.
        FileNotFoundError: The file with the answers is missing.
    """

    def __init__(self, split: StoredSplit, sequence_length: int, *, pack_examples: bool = False) -> None:
        entry = split.answers
        if entry is None:
            raise UserError(
                f"{split.description} has no prompts and answers, which data.samples examples needs: prepare them with "
                "`megatape prepare finetuning`, or set data.samples to packed"
            )
        if entry.longest > sequence_length + 1:
            raise UserError(
                f"sequence length is {sequence_length}, so an example of {split.description} may have one token more, but the "
                f"longest has {entry.longest}: raise data.sequence_length, or prepare with a lower {flag('sequence_length')}"
            )
        path = split.fetch(entry.file)
        answers = retry_transient_errors(lambda: read_answers(path, entry, split.num_tokens))
        # Each answer's first token and end in the stream, [answers, 2].
        self._answers = answers[:, 1:]
        last_answers = np.searchsorted(answers[:, 0], np.arange(entry.examples), side="right") - 1
        # Boundaries of the examples in the stream.
        ends = np.r_[0, self._answers[last_answers, 1]]
        inputs = np.diff(ends) - 1
        if pack_examples:
            packing = pack(inputs, sequence_length)
        else:
            packing = alone(inputs.size)
        arrangement = ArrangementInMemory([PackedPart(ends[:-1], inputs, packing)])
        super().__init__(split, sequence_length, arrangement, has_document_starts=pack_examples)
        self.unigram_entropy = entry.unigram_entropy
        self.fingerprint = content_hash(split.fingerprint, entry.sha256)

    def fill(self, index: int, sample: TrainingSample) -> None:
        super().fill(index, sample)
        if self.split.index.source.get(HIDES_ANSWERS):
            # The token after an answer may begin the next example, so the model must still read it.
            is_answer = target_mask(sample.targets[:-1]) & (sample.tokens[1:] != self.split.bos_id)
            sample.tokens[1:][is_answer] = self.split.eos_id

    def _targets(self, begin: int, ids: np.ndarray) -> np.ndarray:
        targets = np.full(ids.size - 1, IGNORE_INDEX, np.int64)
        first, last = np.searchsorted(self._answers[:, 0], (begin, begin + ids.size))
        for start, end in self._answers[first:last] - begin:
            targets[start - 1 : end - 1] = ids[start:end]
        return targets


def read_answers(path: Path, entry: Answers, num_tokens: int) -> np.ndarray:
    """Read and check the file with a split's answers.

    Args:
        path: Path of the .npy file.
        entry: Index entry of the answers.
        num_tokens: Tokens in the split.

    Returns:
        Example, first token and end of each answer, int64 [answers, 3].

    Raises:
        UserError, FileNotFoundError: The file is missing, differs from the index, or does not fit the split.
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
