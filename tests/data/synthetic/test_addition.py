"""Addition: problems that are held out."""

import re

from tests.helpers.data.synthetic import task


def unordered_problems(split: str, count: int) -> set[frozenset[str]]:
    """Return the pairs of operands in a split, in either order."""
    samples = task("addition").samples(split, count)
    return {frozenset(re.findall("[0-9]+(?=[+=])", sample.text)) for sample in samples}


def test_held_out_problems_are_never_added_in_training() -> None:
    trained = unordered_problems("train", 5000)
    assert not trained & unordered_problems("held_out", 200)
    assert not trained & unordered_problems("long", 200)
