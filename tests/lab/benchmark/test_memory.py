"""Resident memory of training in real processes."""

import pytest

from megatape.accounting.parameters import count_parameters
from megatape.lab.benchmark.memory import measure, settings


@pytest.mark.slow
def test_two_ranks() -> None:
    """At stage 2 a rank holds the weights, their float32 gradients, and half of the masters and of AdamW's state."""
    changes = {"model.num_layers": 1, "zero.stage": 2}
    found = measure(2, changes)
    weights = 4 * count_parameters(settings(2, changes).model).total
    assert weights < found.initialized <= found.peak_initializing <= found.peak
