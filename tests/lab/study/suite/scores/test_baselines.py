"""Baselines of the suite: scores with all knowledge of the answers, and with little."""

import random
from itertools import product
from typing import ClassVar, Literal

import pytest

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask
from megatape.lab.study.suite.scores.baselines import BASELINES, baseline_records
from megatape.lab.study.suite.scores.record import Record
from megatape.registry import SYNTHETIC_TASKS

# Highest scores of the baselines on tasks whose answers they can partly know: several bits were written (`flip_flop`), a value
# is one of those in the text, some of which were asked for before (`recall` and its variants), the `+` of two variables
# (`word_a5`), the symbols seen on a walk (`ring`, `torus`), the kinds of open brackets (`dyck`), few symbols in many regions
# (`contextual_counting`).
BAG_LIMITS = {
    "flip_flop": 0.7,
    "parity": 0.6,
    "recall": 0.35,
    "selective_copy": 0.25,
    "counting": 0.4,
    "state_s3": 0.2,
    "word_a5": 0.6,
    "reassigned_recall": 0.3,
    "two_back": 0.3,
    "three_back": 0.3,
    "four_back": 0.3,
    "ring": 0.5,
    "torus": 0.3,
    "dyck": 0.55,
    "contextual_counting": 0.3,
}
MAJORITY_LIMITS = {
    "flip_flop": 0.6,
    "parity": 0.6,
    "counting": 0.25,
    "state_s3": 0.2,
    "word_a5": 0.6,
    "dyck": 0.3,
    "contextual_counting": 0.3,
}
# Limits for all other tasks
BAG_LIMIT = 0.15
MAJORITY_LIMIT = 0.1


class First(SyntheticTask):
    """Task with three answers: the more frequent letter, which needs no order, the first letter, and a random one."""

    alphabet = "abcd>"
    axis = "length"
    scored: ClassVar[Literal["answers"]] = "answers"
    answers_end = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        return {"train": Split(11), "test": Split(11), "again": Split(11, "other samples")}

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        letters = "".join(generator.choices("ab", k=7))
        most_frequent = max("ab", key=letters.count)
        text = f"{letters}>{most_frequent}{letters[0]}{generator.choice('cd')}"
        answers = tuple(Answer(7 + key, 8 + key, key) for key in (1, 2, 3))
        return SyntheticSample(text, answers)


def _records(task: SyntheticTask, count: int) -> dict[tuple[str, str], Record]:
    """Return the baselines' records by row and split, for a number of samples."""
    return {(record.contender, record.split): record for record in baseline_records(task, count)}


def _scores_by_key(record: Record) -> dict[int, float]:
    return {key: count / asked for key, count, asked in record.curve}


def test_baselines_know_only_their_features() -> None:
    records = _records(First("first", "tiny"), 400)

    assert set(records) == set(product(BASELINES, ("test", "again")))
    for split in ("test", "again"):
        oracle = records["oracle", split]
        assert oracle.score == 1
        assert _scores_by_key(oracle) == {1: 1, 2: 1, 3: 1}
        majority = _scores_by_key(records["majority", split])
        assert max(majority.values()) < 0.6
        bag = _scores_by_key(records["bag of tokens", split])
        assert bag[1] > 0.95
        # In 66% of all strings with 7 letters, the more frequent letter equals the first one.
        assert 0.55 < bag[2] < 0.75
        assert 0.4 < bag[3] < 0.6
        assert {row: records[row, split].asked for row in BASELINES} == dict.fromkeys(BASELINES, 1200)


def test_baselines_are_deterministic() -> None:
    assert _records(First("first", "tiny"), 50) == _records(First("first", "tiny"), 50)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNTHETIC_TASKS)
def test_no_task_leaks_its_answers(name: str) -> None:
    """The counts of the tokens before an answer tell little about it, and its place alone tells nothing."""
    task = SYNTHETIC_TASKS[name].load()(name, "tiny")

    records = _records(task, 300)

    for split in task.tests:
        majority = records["majority", split].score
        bag = records["bag of tokens", split].score
        assert records["oracle", split].score == 1
        assert majority is not None
        assert majority < MAJORITY_LIMITS.get(name, MAJORITY_LIMIT), split
        assert bag is not None
        assert bag < BAG_LIMITS.get(name, BAG_LIMIT), split
