"""Addition: problems that are held out."""

import re

from tests.helpers.data.synthetic import task

COUNT = 200


def test_held_out_problems_are_never_added_in_training() -> None:
    def pairs(split: str, count: int) -> set[frozenset[str]]:
        return {frozenset(re.findall("[0-9]+(?=[+=])", sample.text)) for sample in task("addition").samples(split, count)}

    assert not pairs("train", 5000) & (pairs("held_out", COUNT) | pairs("long", COUNT))
