"""Packing: nothing is lost, and little room is left."""

import numpy as np
import pytest

from megatape.data.training.packing import pack


@pytest.mark.parametrize("capacity", [1, 7, 64, 1000])
def test_packing(capacity: int) -> None:
    """Every span once, none beyond the capacity, and little room is left."""
    lengths = np.random.default_rng(capacity).integers(1, capacity + 1, 2000)
    samples = pack(lengths, capacity)
    assert sorted(span for sample in samples for span in sample) == list(range(2000))
    assert max(lengths[sample].sum() for sample in samples) <= capacity
    assert len(samples) <= 1.06 * lengths.sum() / capacity + 1
    assert samples == sorted(samples)
