"""A data directory of examples: tokens in shards as of any data, and which of them are answers."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from megatape.data.finetuning.format import Example
from megatape.data.shards.index import SPLITS, Answers, Index, Split, build_index
from megatape.data.shards.writer import SplitWriter, entropy
from megatape.data.tokenizers.tokenizer import Tokenizer


class ExampleFolder:
    """Writes examples of both splits, and at the end the index."""

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        self._directory, self._tokenizer = directory, tokenizer
        self._writers = {split: _ExampleWriter(directory, split, tokenizer) for split in SPLITS}

    def add(self, split: str, example: Example) -> None:
        """Append an example to a split."""
        self._writers[split].add(example)

    def empty_split(self) -> str | None:
        """The first split without an example, if there is one."""
        return next((split for split, writer in self._writers.items() if not writer.examples), None)

    def close(self, source: dict[str, Any], validation_share: float = 0.0, counts: Mapping[str, int] | None = None) -> Index:
        """Write the rest and the index, and return it.

        Args:
            source: Description of where the examples come from.
            validation_share: Share of the validation split; 0 if it was chosen otherwise.
            counts: What preparation skipped, cut and dropped.
        """
        written = {split: writer.close() for split, writer in self._writers.items()}
        return build_index(
            self._directory,
            self._tokenizer,
            source=source,
            validation_share=validation_share,
            splits={split: content for split, (content, _) in written.items()},
            answers={split: answers for split, (_, answers) in written.items()},
            counts=dict(counts or {}),
        )


class _ExampleWriter:
    """Collects the examples of a split.

    Attributes:
        examples: Number of examples.
    """

    def __init__(self, directory: Path, split: str, tokenizer: Tokenizer) -> None:
        self._path = directory / f"{split}-answers.npy"
        self._tokens = SplitWriter(directory, split, tokenizer.vocab_size, tokenizer.eos_id)
        self._answers: list[tuple[int, int, int]] = []
        self._learned = np.zeros(tokenizer.vocab_size, np.int64)  # how often each token is a target
        self._num_tokens = self._longest = self.examples = 0

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
        """Write the rest and return the split's parts of the index."""
        stream = io.BytesIO()
        np.lib.format.write_array(stream, np.array(self._answers, np.int64), version=(1, 0), allow_pickle=False)
        self._path.write_bytes(stream.getvalue())
        return self._tokens.close(), Answers(
            file=self._path.name,
            sha256=hashlib.sha256(stream.getvalue()).hexdigest(),
            examples=self.examples,
            tokens=int(self._learned.sum()),
            longest=self._longest,
            unigram_entropy=entropy(self._learned),
        )
