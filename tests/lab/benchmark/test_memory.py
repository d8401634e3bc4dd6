"""Resident memory of training in real processes."""

import pytest

from megatape.accounting.parameters import count_parameters
from megatape.lab.benchmark.memory import Case, measure


@pytest.mark.slow
def test_two_ranks() -> None:
    """At stage 2 a rank holds the weights, their float32 gradients, and half of the masters and of AdamW's state."""
    case = Case(stage=2, world_size=2, num_layers=1)
    found = measure(case)
    weights = 4 * count_parameters(case.config().model).total
    assert weights < found.initialized <= found.peak_initializing <= found.peak
