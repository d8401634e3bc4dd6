"""Baselines of the suite: scores with all knowledge of the answers, and with little."""

import random
from typing import ClassVar, Literal

import pytest

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask
from megatape.lab.study.suite.scores.baselines import BASELINES, baseline_records
from megatape.lab.study.suite.scores.record import Record
from megatape.registry import SYNTHETIC_TASKS


class First(SyntheticTask):
    """The letter there are more of, which needs no order, then the first one, which does, then one that can't be known."""

    alphabet = "abcd>"
    axis = "length"
    scored: ClassVar[Literal["answers"]] = "answers"
    answers_end = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        return {"train": Split(11), "test": Split(11), "again": Split(11, "other samples")}

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        letters = "".join(generator.choices("ab", k=7))
        most = max("ab", key=letters.count)
        text = f"{letters}>{most}{letters[0]}{generator.choice('cd')}"
        return SyntheticSample(text, tuple(Answer(7 + key, 8 + key, key) for key in (1, 2, 3)))


def _records(task: SyntheticTask, count: int) -> dict[tuple[str, str], Record]:
    return {(record.row, record.split): record for record in baseline_records(task, count)}


def test_baselines_know_only_their_features() -> None:
    records = _records(First("first", "tiny"), 400)
    assert set(records) == {(row, split) for row in BASELINES for split in ("test", "again")}
    for split in ("test", "again"):
        right = {row: {key: count / asked for key, count, asked in records[row, split].curve} for row in BASELINES}
        assert right["oracle"] == {1: 1, 2: 1, 3: 1}
        assert records["oracle", split].score == 1
        assert max(right["majority"].values()) < 0.6
        # The letter there are more of is the first one's in 66% of all strings of 7.
        assert right["bag of tokens"][1] > 0.95
        assert 0.55 < right["bag of tokens"][2] < 0.75
        assert 0.4 < right["bag of tokens"][3] < 0.6
        assert all(records[row, split].asked == 1200 for row in BASELINES)


def test_baselines_are_deterministic() -> None:
    assert _records(First("first", "tiny"), 50) == _records(First("first", "tiny"), 50)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_no_task_leaks_its_answers(name: str) -> None:
    """The counts of the tokens before an answer tell little about it, and its place alone tells nothing."""
    made = SYNTHETIC_TASKS[name].load()(name, "tiny")
    records = _records(made, 300)
    # Several bits were written; a value is one of those given, of which some were asked for before; the `+` of two variables.
    bag = {"flip_flop": 0.7, "parity": 0.6, "recall": 0.35, "selective_copy": 0.25, "counting": 0.4, "state_s3": 0.2}
    bag |= {"word_a5": 0.6} | dict.fromkeys(("reassigned_recall", "two_back", "three_back", "four_back"), 0.3)
    # The symbols seen on a walk; the kinds of brackets that are open; few ones in many regions.
    bag |= {"ring": 0.5, "torus": 0.3, "dyck": 0.55, "contextual_counting": 0.3}
    guess = {"flip_flop": 0.6, "parity": 0.6, "counting": 0.25, "state_s3": 0.2, "word_a5": 0.6}
    guess |= {"dyck": 0.3, "contextual_counting": 0.3}
    for split in made.tests:
        assert records["oracle", split].score == 1
        scores = [records[row, split].score for row in ("majority", "bag of tokens")]
        assert scores[0] is not None and scores[0] < guess.get(name, 0.1), split
        assert scores[1] is not None and scores[1] < bag.get(name, 0.15), split
