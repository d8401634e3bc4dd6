"""A task's data directory: what training learns from it."""

import random
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest

from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.synthetic.folder import check_folder, write_task
from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask
from megatape.data.training.example_dataset import ExampleDataset
from megatape.nn.targets import IGNORE_INDEX

COUNTS = {"train": 20, "validation": 5}


class Echo(SyntheticTask):
    """One or two letters, each repeated: `aA`, or `aAbB`."""

    alphabet = "abcABC"
    axis = "letters"
    scored: ClassVar[Literal["answers"]] = "answers"

    def make_splits(self, size: Size) -> dict[str, Split]:
        return {"train": Split(4), "test": Split(4)}

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        letters = generator.choices("abc", k=generator.randint(1, 2))
        answers = tuple(Answer(2 * place + 1, 2 * place + 2, place) for place in range(len(letters)))
        return SyntheticSample("".join(letter + letter.upper() for letter in letters), answers)


class EndingEcho(Echo):
    """The end token belongs to the last answer."""

    answers_end = True


@pytest.mark.parametrize("kind", [Echo, EndingEcho])
def test_answers_are_what_is_learned(kind: type[Echo], tmp_path: Path) -> None:
    task = kind("echo", "tiny")
    write_task(task, COUNTS, tmp_path / "data")
    for split, count in COUNTS.items():
        dataset = ExampleDataset(StoredSplit(tmp_path / "data", split), task.tokens("train") - 1)
        assert dataset.num_samples == count
        for index, sample in enumerate(task.samples(split, count)):
            found = dataset.sample(index)
            text, learned = (
                [int(token) for token in part if token != dataset.split.eos_id] for part in (found.tokens, found.targets)
            )
            tokenizer = dataset.split.tokenizer()
            inputs = sample.text if task.answers_end else sample.text[:-1]
            assert tokenizer.decode(text) == inputs
            assert found.tokens[0] == dataset.split.bos_id
            assert tokenizer.decode(token for token in learned if token != IGNORE_INDEX) == sample.text[1::2]
            places = np.flatnonzero(found.targets != IGNORE_INDEX).tolist()
            ends = [len(sample.text)] if task.answers_end else []  # the end token follows the last character
            assert places == [answer.begin for answer in sample.answers] + ends


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
