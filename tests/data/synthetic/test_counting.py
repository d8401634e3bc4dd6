"""Counting: passes of its splits."""

import pytest

from tests.helpers.data.synthetic import task

COUNT = 200


def test_sparse_counting_has_more_passes() -> None:
    made = task("counting")
    for split, dense in (("sparse", "test"), ("long_sparse", "long")):
        sparser, denser = ("".join(sample.text for sample in made.samples(each, COUNT)) for each in (split, dense))
        passes = [text.count(".") / text.count("+") for text in (sparser, denser)]
        assert passes[0] == pytest.approx(3 * passes[1], rel=0.2)  # 3 standard deviations
