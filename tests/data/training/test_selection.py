"""Validation samples on which a run is evaluated."""

import pytest

from megatape.data.training.selection import select_samples


@pytest.mark.parametrize("count", [1, 3, 64, 99, 100, 1000])
def test_spread_samples_are_evenly_spaced(count: int) -> None:
    """Each part of the split has its share of samples to within one. A small split is selected completely."""
    samples = select_samples(100, count, "spread")
    assert len(samples) == min(count, 100)
    assert len(set(samples)) == len(samples)
    for end in range(1, 101):
        before = sum(sample < end for sample in samples)
        assert abs(before - end * len(samples) / 100) < 1


def test_first_samples_are_in_storage_order() -> None:
    assert select_samples(100, 3, "first") == [0, 1, 2]
