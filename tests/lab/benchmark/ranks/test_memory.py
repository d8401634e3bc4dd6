"""Resident memory when training in real processes."""

import pytest

from megatape.accounting.whole_model.parameters import count_parameters
from megatape.lab.benchmark.ranks.memory import MemoryCase, measure
from megatape.lab.benchmark.ranks.rank_processes import RankLayout


@pytest.mark.slow
def test_memory_of_two_ranks() -> None:
    """At stage 2 a rank holds the weights, their float32 gradients, and half of the masters and of AdamW's state.

    Measured in units of the weights, two ranks have 2.5 to 3.0 each after initializing and 4.3 to 4.5 at the peak. One
    rank, which holds everything, has 4.0 and 6.5.
    """
    case = MemoryCase(RankLayout(stage=2, world_size=2), num_layers=1)
    weight_bytes = 4 * count_parameters(case.config().model).total
    # Halfway between half and all of the master weights and AdamW's two moments
    max_initialized = 3.25 * weight_bytes
    # Gradients, and as much again for activations and buckets.
    max_peak = max_initialized + 2 * weight_bytes

    measured = measure(case)
    measured_alone = measure(MemoryCase(RankLayout(stage=2, world_size=1), num_layers=1))

    assert weight_bytes < measured.initialized
    assert measured.initialized <= measured.peak_initializing
    assert measured.peak_initializing <= measured.peak
    assert measured.initialized < max_initialized < measured_alone.initialized
    assert measured.peak < max_peak < measured_alone.peak
