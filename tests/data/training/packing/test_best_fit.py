"""Best-fit packing of spans into samples: no span is lost, and little room remains.

The packing is that of earlier versions, so that old runs resume.
"""

import numpy as np
import pytest

from megatape.data.training.packing.best_fit import pack


def pack_spans(lengths: np.ndarray, capacity: int) -> list[list[int]]:
    """Return the span numbers of each sample."""
    packing = pack(lengths, capacity)
    ends = np.cumsum(packing.sizes)
    return [spans.tolist() for spans in np.split(packing.order, ends[:-1])]


def pack_one_by_one(lengths: list[int], capacity: int) -> list[list[int]]:
    """Pack spans as best fit decreasing is defined.

    Of several samples with equal room, the one that received a span last is chosen.
    """
    samples: list[list[int]] = []
    recent: list[int] = []  # Samples, ordered by when they received their last span
    for span in sorted(range(len(lengths)), key=lambda span: -lengths[span]):
        rooms = {}
        for sample in recent:
            rooms[sample] = capacity - sum(lengths[packed] for packed in samples[sample])
        fitting = [sample for sample in reversed(recent) if rooms[sample] >= lengths[span]]
        best = min(fitting, key=lambda sample: rooms[sample], default=len(samples))
        if best == len(samples):
            samples.append([])
        else:
            recent.remove(best)
        samples[best].append(span)
        recent.append(best)
    return sorted(sorted(sample) for sample in samples)


@pytest.mark.parametrize("capacity", [1, 7, 64, 1000, 100_000])
def test_every_span_is_packed_once_within_the_capacity(capacity: int) -> None:
    lengths = np.random.default_rng(capacity).integers(1, capacity + 1, 2000)
    samples = pack_spans(lengths, capacity)

    packed = sorted(span for sample in samples for span in sample)
    assert packed == list(range(2000))
    assert max(lengths[sample].sum() for sample in samples) <= capacity
    assert len(samples) <= 1.06 * lengths.sum() / capacity + 1
    assert samples == sorted(samples)


@pytest.mark.parametrize("capacity", [1, 7, 64, 1000, 100_000])
def test_no_spans_are_no_samples(capacity: int) -> None:
    packing = pack(np.empty(0, np.int64), capacity)
    assert packing.order.size == 0
    assert packing.sizes.size == 0


@pytest.mark.parametrize("seed", range(20))
def test_spans_are_packed_as_one_by_one(seed: int) -> None:
    """Many spans have equal lengths, so another order of samples with equal room gives another packing."""
    generator = np.random.default_rng(seed)
    capacity = int(generator.integers(1, 60))
    num_spans = int(generator.integers(1, 150))
    lengths = generator.integers(1, generator.integers(1, capacity + 1) + 1, num_spans)
    assert pack_spans(lengths, capacity) == pack_one_by_one(lengths.tolist(), capacity)
