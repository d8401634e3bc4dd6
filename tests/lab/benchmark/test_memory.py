"""Resident memory of training in real processes."""

import pytest

from megatape.accounting.parameters import count_parameters
from megatape.lab.benchmark.memory import Case, measure


@pytest.mark.slow
def test_memory_of_two_ranks() -> None:
    """At stage 2 a rank holds the weights, their float32 gradients, and half of the masters and of AdamW's state."""
    case = Case(stage=2, world_size=2, num_layers=1)
    weight_bytes = 4 * count_parameters(case.config().model).total

    measured = measure(case)

    assert weight_bytes < measured.initialized
    assert measured.initialized <= measured.peak_initializing
    assert measured.peak_initializing <= measured.peak
