"""Data directories of synthetic tasks: training learns the answers alone, and other data is refused."""

import random
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest

from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.synthetic.folder import check_folder, write_task
from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask
from megatape.data.training.datasets.example_dataset import ExampleDataset
from megatape.nn.targets import IGNORE_INDEX

COUNTS = {"train": 20, "validation": 5}


class Echo(SyntheticTask):
    """Task to repeat one or two letters in upper case: `aA` or `aAbB`."""

    alphabet = "abcABC"
    axis = "letters"
    scored: ClassVar[Literal["answers"]] = "answers"

    def make_splits(self, size: Size) -> dict[str, Split]:
        return {"train": Split(4), "test": Split(4)}

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        letters = generator.choices("abc", k=generator.randint(1, 2))
        answers = tuple(Answer(2 * index + 1, 2 * index + 2, index) for index in range(len(letters)))
        return SyntheticSample("".join(letter + letter.upper() for letter in letters), answers)


class EndingEcho(Echo):
    """Echo whose last answer includes the end token."""

    answers_end = True


def check_stored_sample(dataset: ExampleDataset, index: int, sample: SyntheticSample, answers_end: bool) -> None:
    """Check that a stored sample reads the text, and that its targets are the answers.

    Args:
        dataset: Stored samples.
        index: Index of the stored sample.
        sample: Sample expected there.
        answers_end: Whether the end token is a target, after the last character.
    """
    stored = dataset.sample(index)
    tokenizer = dataset.split.tokenizer()
    end = dataset.split.eos_id
    expected_text = sample.text[:-1]
    expected_indices = [answer.begin for answer in sample.answers]
    if answers_end:
        expected_text = sample.text
        expected_indices.append(len(sample.text))

    assert stored.tokens[0] == dataset.split.bos_id
    assert tokenizer.decode(token for token in stored.tokens.tolist() if token != end) == expected_text
    learned = [target for target in stored.targets.tolist() if target not in (end, IGNORE_INDEX)]
    assert tokenizer.decode(learned) == sample.text[1::2]
    assert np.flatnonzero(stored.targets != IGNORE_INDEX).tolist() == expected_indices


@pytest.mark.parametrize("kind", [Echo, EndingEcho])
def test_only_answers_are_learned(kind: type[Echo], tmp_path: Path) -> None:
    task = kind("echo", "tiny")
    write_task(task, COUNTS, tmp_path / "data")
    for split, count in COUNTS.items():
        dataset = ExampleDataset(StoredSplit(tmp_path / "data", split), task.tokens("train") - 1)
        assert dataset.num_samples == count
        for index, sample in enumerate(task.samples(split, count)):
            check_stored_sample(dataset, index, sample, task.answers_end)


def test_data_of_another_definition_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Echo("echo", "tiny")
    data = tmp_path / "data"
    write_task(task, COUNTS, data)
    assert load_index(data).source["samples"] == COUNTS
    check_folder(task, COUNTS, data)
    with pytest.raises(FileExistsError):
        write_task(task, COUNTS, data)
    with pytest.raises(ValueError, match="was written for size tiny, now it is small"):
        check_folder(Echo("echo", "small"), COUNTS, data)
    with pytest.raises(ValueError, match="was written for samples .* choose another folder"):
        check_folder(task, COUNTS | {"train": 21}, data)
    monkeypatch.setattr(Echo, "alphabet", "abcdABC")
    with pytest.raises(ValueError, match="was written for definition"):
        check_folder(Echo("echo", "tiny"), COUNTS, data)
