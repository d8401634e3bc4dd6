"""Write records to files, prepare them for fine-tuning, and read the prepared examples."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.data.finetuning.example_source import ExampleCounts, ExampleSource
from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.prepare import prepare_examples
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.datasets.dataset import TrainingSample
from megatape.data.training.datasets.example_dataset import ExampleDataset
from megatape.nn.targets import IGNORE_INDEX

Prepare = Callable[..., tuple[Path, ExampleCounts]]


@pytest.fixture
def prepare(tmp_path: Path, tokenizer: Tokenizer) -> Prepare:
    """prepare(format, records, ...) prepares the records for both splits and returns the data directory and the counts.

    Records given as bytes are written unchanged.
    """

    def run(
        form: str,
        records: list[Any],
        tokenizer: Tokenizer = tokenizer,
        name: str = "data",
        max_bad_fraction: float = 0.01,
        **limits: Any,
    ) -> tuple[Path, ExampleCounts]:
        output = tmp_path / name
        training = write_lines(tmp_path / f"{name}.jsonl", records)
        validation = write_lines(tmp_path / f"{name}-validation.jsonl", records)
        limit = Limits(**{"sequence_length": 64} | limits)
        source = ExampleSource(form, (str(training),), (str(validation),), limit, max_bad_fraction=max_bad_fraction)
        _, counts, _ = prepare_examples(source, output, tokenizer, lambda counts, tokens: None)
        return output, counts

    return run


def write_lines(path: Path, records: list[Any]) -> Path:
    """Write one record a line. Records given as bytes are written unchanged, others as JSON."""
    with path.open("wb") as file:
        for record in records:
            line = record
            if not isinstance(record, bytes):
                line = json.dumps(record).encode()
            file.write(line + b"\n")
    return path


def examples(directory: Path, length: int = 64, split: str = "train") -> list[tuple[list[int], list[int]]]:
    """Return each example's inputs and targets. Targets are -1 at tokens without a loss."""
    dataset = ExampleDataset(StoredSplit(directory, split), length)
    pairs = []
    for index in range(dataset.num_samples):
        (pair,) = in_sample(dataset.sample(index), [0], dataset.split.eos_id)
        pairs.append(pair)
    return pairs


def in_sample(sample: TrainingSample, starts: list[int], eos_id: int) -> list[tuple[list[int], list[int]]]:
    """Return inputs and targets in a sample by the examples' start positions, after checking that only padding follows."""
    targets = np.where(sample.targets == IGNORE_INDEX, -1, sample.targets)
    end = int(np.flatnonzero(targets >= 0)[-1]) + 1
    assert set(sample.tokens[end:].tolist()) <= {eos_id}
    bounds = itertools.pairwise([*starts, end])
    return [(sample.tokens[first:last].tolist(), targets[first:last].tolist()) for first, last in bounds]


def learned(prompt: list[int], answer: list[int]) -> tuple[list[int], list[int]]:
    """Return what `examples` returns for an example whose whole answer has a loss."""
    return [*prompt, *answer[:-1]], [-1] * (len(prompt) - 1) + answer


PAIRS = [
    {"prompt": "The dog jumps over", "answer": " the fox"},
    {"prompt": "<s> 12 </s>\n\n  and <|end|><unk>", "answer": "</s>\u2581 then "},
    {"prompt": "é 漢", "answer": "x"},
]


def words(count: int) -> str:
    """Return a text exceeding `count` tokens with any tokenizer."""
    return " ".join(str(number) for number in range(count))
