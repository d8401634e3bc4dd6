"""Strings of few letters in tasks by length."""

import pytest

from megatape.data.synthetic.task import TRAIN
from tests.helpers.data.synthetic import task


def strings(name: str, split: str) -> list[str]:
    return [sample.text.split(">")[0] for sample in task(name).samples(split, 200)]


@pytest.mark.parametrize("name", ["copy", "reverse", "sort"])
def test_strings_of_few_letters_have_the_lengths_of_training(name: str) -> None:
    few = strings(name, "few")
    assert max(len(set(string)) for string in few) == 3
    assert set(map(len, few)) == set(map(len, strings(name, TRAIN)))
