"""Strings of few letters."""

import pytest

from megatape.data.synthetic.task import TRAIN
from tests.helpers.data.synthetic import task

COUNT = 200


@pytest.mark.parametrize("name", ["copy", "reverse", "sort"])
def test_few_different_letters(name: str) -> None:
    made = task(name)
    few, trained = ([sample.text.split(">")[0] for sample in made.samples(split, COUNT)] for split in ("few", TRAIN))
    assert max(len(set(string)) for string in few) == 3
    assert set(map(len, few)) == set(map(len, trained))
