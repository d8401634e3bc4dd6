"""Counting: passes in its splits."""

import pytest

from tests.helpers.data.synthetic import task


def passes_per_count(split: str) -> float:
    """Return the ratio of passes (`.`) to counted steps (`+`)."""
    text = "".join(sample.text for sample in task("counting").samples(split, 200))
    return text.count(".") / text.count("+")


@pytest.mark.parametrize(("sparse", "dense"), [("sparse", "test"), ("long_sparse", "long")])
def test_sparse_counting_has_more_passes(sparse: str, dense: str) -> None:
    expected = 3 * passes_per_count(dense)
    assert passes_per_count(sparse) == pytest.approx(expected, rel=0.2)  # 3 standard deviations
