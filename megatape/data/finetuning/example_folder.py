"""Writes examples as a data directory: tokens in ordinary shards, and the spans of their answers."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from megatape.data.finetuning.format import Example
from megatape.data.shards.entries import SPLITS, Answers, Index, Split
from megatape.data.shards.index import build_index
from megatape.data.shards.writer import SplitWriter, entropy
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.utils.files.files import create_file


class ExampleFolder:
    """Writes the examples of both splits, then the index.

    Args:
        directory: Folder to write into.
        tokenizer: Tokenizer of the examples.

    Attributes:
        writers: Writers by split.
    """

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        self._directory = directory
        self._tokenizer = tokenizer
        self.writers = {split: ExampleWriter(directory, split, tokenizer) for split in SPLITS}

    def close(self, source: dict[str, Any], validation_share: float = 0.0, counts: Mapping[str, int] | None = None) -> Index:
        """Write the remaining examples and the index. Returns the index.

        Args:
            source: Record of where the examples came from.
            validation_share: Share of the validation split; 0 if it was chosen otherwise.
            counts: Counts of skipped, cut and dropped records.
        """
        splits = {}
        answers = {}
        for name, writer in self.writers.items():
            splits[name], answers[name] = writer.close()
        return build_index(
            self._directory,
            self._tokenizer,
            source=source,
            validation_share=validation_share,
            splits=splits,
            answers=answers,
            counts=dict(counts or {}),
        )


class ExampleWriter:
    """Writes the examples of one split.

    Args:
        directory: Folder to write into.
        split: Split name.
        tokenizer: Tokenizer of the examples.

    Attributes:
        examples: Number of examples so far.
    """

    def __init__(self, directory: Path, split: str, tokenizer: Tokenizer) -> None:
        self._path = directory / f"{split}-answers.npy"
        self._tokens = SplitWriter(directory, split, tokenizer.vocab_size, tokenizer.eos_id)
        # (example, first token, end) for each answer.
        self._answers: list[tuple[int, int, int]] = []
        # Number of times that each token is learned.
        self._learned = np.zeros(tokenizer.vocab_size, np.int64)
        self._num_tokens = 0
        self._longest = 0
        self.examples = 0

    def add(self, example: Example) -> None:
        """Append an example."""
        ids = np.array(example.ids)
        for begin, end in example.answers:
            self._answers.append((self.examples, self._num_tokens + begin, self._num_tokens + end))
            np.add.at(self._learned, ids[begin:end], 1)
        self._tokens.add(ids, text_bytes=0)
        self._num_tokens += ids.size
        self._longest = max(self._longest, ids.size)
        self.examples += 1

    def close(self) -> tuple[Split, Answers]:
        """Write the remaining examples. Returns the split's index entries."""
        stream = io.BytesIO()
        np.lib.format.write_array(stream, np.array(self._answers, np.int64), version=(1, 0), allow_pickle=False)
        content = stream.getvalue()
        with create_file(self._path) as file:
            file.write(content)
        answers = Answers(
            file=self._path.name,
            sha256=hashlib.sha256(content).hexdigest(),
            examples=self.examples,
            tokens=int(self._learned.sum()),
            longest=self._longest,
            unigram_entropy=entropy(self._learned),
        )
        return self._tokens.close(), answers
