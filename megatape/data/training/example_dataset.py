"""Samples made of examples, whose answers are learned: one example in each, or as many as fit."""

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path
from tokenize import TokenError

import numpy as np

from megatape.data.shards.cache import CacheFolder
from megatape.data.shards.index import Answers
from megatape.data.training.dataset import Dataset, Sample
from megatape.data.training.packing import joined, pack
from megatape.errors import MissingPath, UserError
from megatape.files import retry_transient_errors
from megatape.targets import IGNORE_INDEX


class ExampleDataset(Dataset):
    """Samples of whole examples, followed by padding (the end token). Only tokens of answers are targets.

    The last token of an example is a target and never an input, so an example of m tokens takes m - 1 places of a sample.

    mask_documents: a sample has as many examples as fit (packing.py), which do not see each other; else it has one.
    Attributes: filled, the share of all places that is not padding, and those of Dataset; unigram_entropy is that of the
    targets. Raises UserError if the split is not one of prompts and answers, or its longest example does not fit.
    """

    def __init__(
        self,
        directory: str | Path,
        split: str,
        sequence_length: int,
        mask_documents: bool = False,
        cache: CacheFolder | None = None,
    ):
        super().__init__(directory, split, sequence_length, cache)
        entry = self.answers
        if entry is None:
            raise UserError(
                f"{self._name} has no prompts and answers, which data.samples examples needs: prepare them with `megatape "
                "prepare finetuning`, or set data.samples to packed"
            )
        if entry.longest > sequence_length + 1:
            raise UserError(
                f"sequence length is {sequence_length}, so an example of {self._name} may have one token more, but the longest "
                f"has {entry.longest}: raise data.sequence_length, or prepare with a lower `sequence_length`"
            )
        self._folder.fetch(entry.file)
        answers = retry_transient_errors(lambda: read_answers(self._folder.directory / entry.file, entry, self.num_tokens))
        # The answers of example i are rows [first[i], first[i + 1]) of `_targets`; its tokens, [begins[i], begins[i + 1]).
        self._targets = answers[:, 1:]
        self._first = np.searchsorted(answers[:, 0], np.arange(entry.examples + 1))
        self._begins = np.r_[0, self._targets[self._first[1:] - 1, 1]]
        places = np.diff(self._begins) - 1
        self._mask_documents = mask_documents
        samples = pack(places, sequence_length) if mask_documents else [[example] for example in range(places.size)]
        self._examples = np.concatenate(samples)
        self._sample_ends = np.cumsum([len(sample) for sample in samples])
        self.num_samples = len(samples)
        self.filled = float(places.sum() / (self.num_samples * sequence_length))
        self.unigram_entropy = entry.unigram_entropy
        identity = json.dumps([self.fingerprint, entry.sha256])
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()

    def sample(self, index: int) -> Sample:
        self._check(index)
        examples = self._examples[self._sample_ends[index - 1] if index else 0 : self._sample_ends[index]]
        sample = joined(map(self._example, examples), self.sequence_length, self.eos_id)
        return sample if self._mask_documents else replace(sample, document_starts=None)

    def _example(self, example: int) -> tuple[np.ndarray, np.ndarray]:
        """Its tokens, and its targets, of which only those in answers are learned."""
        begin, end = (int(token) for token in self._begins[example : example + 2])
        ids = self.stream(begin, end)
        targets = np.full(ids.size - 1, IGNORE_INDEX, np.int64)
        for first, last in self._targets[self._first[example] : self._first[example + 1]] - begin:
            targets[first - 1 : last - 1] = ids[first:last]
        return ids, targets


def read_answers(path: Path, entry: Answers, num_tokens: int) -> np.ndarray:
    """The answers of a split of `num_tokens` tokens: example, first token and end, int64 [answers, 3].

    Raises FileNotFoundError, OSError, or UserError for a file that is not the one of the index, or was never right.
    """
    if not path.is_file():
        raise MissingPath(f"{path}: not found, the index lists it: copy it again or re-run the preparation")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != entry.sha256:
        raise UserError(
            f"{path}: corrupted, sha256 is {found}, the index says {entry.sha256}: copy it again or re-run the preparation"
        )
    try:
        answers = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, MemoryError, SyntaxError, TokenError) as error:
        raise UserError(f"{path}: no array of answers ({error}): prepare the data again") from None
    if answers.dtype != np.int64 or answers.shape != (answers.size // 3, 3) or not answers.size:
        raise UserError(f"{path}: an array {answers.shape} of {answers.dtype}, not of answers: prepare the data again")
    examples, first, end = answers.T
    previous = np.r_[0, end[:-1]]
    new = np.diff(examples, prepend=-1)
    # A target needs a token before it in its example.
    right = (first < end).all() and (first >= previous + new).all() and np.isin(new, (0, 1)).all()
    if not right or end[-1] != num_tokens or examples[-1] + 1 != entry.examples:
        raise UserError(f"{path}: its answers do not fit the {num_tokens} tokens of the split: prepare the data again")
    return answers
