"""Records in files, and the examples that preparation makes of them."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatape.data.finetuning.example_source import ExampleCounts, ExampleSource
from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.prepare import prepare_examples
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.dataset import TrainingSample
from megatape.data.training.example_dataset import ExampleDataset
from megatape.nn.targets import IGNORE_INDEX

Prepare = Callable[..., tuple[Path, ExampleCounts]]


@pytest.fixture
def prepare(tmp_path: Path, tokenizer: Tokenizer) -> Prepare:
    """prepare(format, records, ...) prepares records, all of them for both splits: (data directory, counts).

    A record that is bytes is written as it is."""

    def run(
        form: str,
        records: list[Any],
        tokenizer: Tokenizer = tokenizer,
        name: str = "data",
        max_bad_fraction: float = 0.01,
        **limits: Any,
    ) -> tuple[Path, ExampleCounts]:
        path = write_lines(tmp_path / f"{name}.jsonl", records)
        limit = Limits(**{"sequence_length": 64} | limits)
        held_out = write_lines(tmp_path / f"{name}-validation.jsonl", records)
        source = ExampleSource(form, (str(path),), (str(held_out),), limit, max_bad_fraction=max_bad_fraction)
        _, counts, _ = prepare_examples(source, tmp_path / name, tokenizer, lambda counts, tokens: None)
        return tmp_path / name, counts

    return run


def write_lines(path: Path, records: list[Any]) -> Path:
    lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def examples(directory: Path, length: int = 64, split: str = "train") -> list[tuple[list[int], list[int]]]:
    """Of each example: its tokens without the last, and for each the target, -1 where nothing is learned."""
    dataset = ExampleDataset(StoredSplit(directory, split), length)
    found = []
    for index in range(dataset.num_samples):
        (example,) = in_sample(dataset.sample(index), [0], dataset.split.eos_id)
        found.append(example)
    return found


def in_sample(sample: TrainingSample, starts: list[int], eos_id: int) -> list[tuple[list[int], list[int]]]:
    """The examples that begin at these places of a sample. Checks that nothing but padding follows."""
    targets = [-1 if target == IGNORE_INDEX else target for target in sample.targets.tolist()]
    end = max(place for place, target in enumerate(targets) if target >= 0) + 1
    assert set(sample.tokens[end:].tolist()) <= {eos_id}
    pairs = itertools.pairwise([*starts, end])
    return [(sample.tokens[first:last].tolist(), targets[first:last]) for first, last in pairs]


def learned(prompt: list[int], answer: list[int]) -> tuple[list[int], list[int]]:
    """An example as `examples` gives it, of a prompt and an answer that is learned to its last token."""
    return [*prompt, *answer[:-1]], [-1] * (len(prompt) - 1) + answer


PAIRS = [
    {"prompt": "The dog jumps over", "answer": " the fox"},
    {"prompt": "<s> 12 </s>\n\n  and <|end|><unk>", "answer": "</s>\u2581 then "},
    {"prompt": "é 漢", "answer": "x"},
]


def words(count: int) -> str:
    """Text of more than `count` tokens of any tokenizer."""
    return " ".join(str(number) for number in range(count))
