"""The order of samples, also in windows of shards."""

import numpy as np
import pytest

from megatape.data.training.order import WindowOrder, sample_hash, sample_index

PINNED = [1, 5, 3, 8, 6, 7, 9, 0, 2, 4, 9, 2, 4, 5, 6, 8, 3, 0, 1, 7]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000, 4097])
def test_every_epoch_is_a_permutation(size: int) -> None:
    for epoch in range(3):
        epoch_order = [sample_index(position, size, seed=5) for position in range(epoch * size, (epoch + 1) * size)]
        assert sorted(epoch_order) == list(range(size))


def test_epochs_and_seeds_differ() -> None:
    orders = {
        tuple(sample_index(epoch * 1000 + index, 1000, seed) for index in range(1000)) for epoch in (0, 1) for seed in (0, 1, 2)
    }
    assert len(orders) == 6


def test_order_looks_random() -> None:
    size = 20_011
    order = np.array([sample_index(position, size, seed=3) for position in range(size)])
    assert abs(np.corrcoef(np.arange(size), order)[0, 1]) < 0.03
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.03
    # A random permutation has about one fixed point, and keeps about one pair of neighbors.
    assert np.count_nonzero(order == np.arange(size)) < 8
    assert np.count_nonzero(np.diff(order) == 1) < 8


def test_order_is_pinned() -> None:
    """A resumed run needs the order it started with, so the function must never change."""
    assert [sample_index(position, 10, 1234) for position in range(20)] == PINNED


def test_sample_hash_is_uniform_and_keyed() -> None:
    values = np.array([sample_hash(7, position, 10) for position in range(20_000)])
    assert np.all(np.abs(np.bincount(values, minlength=10) - 2000) < 200)
    assert values[:100].tolist() == [sample_hash(7, position, 10) for position in range(100)]
    assert values[:100].tolist() != [sample_hash(8, position, 10) for position in range(100)]


def test_sizes_beyond_32_bits() -> None:
    size = 2**40 + 7
    assert len({sample_index(position, size, 0) for position in range(1000)}) == 1000
    assert 0 <= sample_index(size - 1, size, 0) < size


SEED = 3
PINNED_WINDOWS = [3, 1, 0, 4, 2, 13, 12, 5, 11, 15, 10, 8, 7, 9, 14, 6, 19, 21, 22, 17, 18, 16, 20]


@pytest.mark.parametrize("window", [1, 2, 5, 6, 100])
def test_an_epoch_uses_every_sample_once_window_by_window(window: int) -> None:
    samples = np.array([5, 0, 3, 8, 2, 5])
    order = WindowOrder("", samples, window, SEED)
    total = int(samples.sum())
    shard_of = np.repeat(np.arange(samples.size), samples)
    epochs = []
    for epoch in range(4):
        places = range(epoch * total, (epoch + 1) * total)
        found = [order.locate(place) for place in places]
        assert sorted(location.sample_index for location in found) == list(range(total))
        numbers = [location.window for location in found]
        assert numbers == sorted(numbers)
        assert {number // order.num_windows for number in numbers} == {epoch}
        for number in set(numbers):
            shards = order.shards(number)
            assert 1 <= len(shards) <= window
            read = {int(shard_of[location.sample_index]) for location in found if location.window == number}
            assert read == {shard for shard in shards if samples[shard]}
        epochs.append([location.sample_index for location in found])
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_the_order_by_windows_is_pinned() -> None:
    """A resumed run needs the order it started with, so the function must never change."""
    order = WindowOrder("", np.array([5, 0, 3, 8, 2, 5]), 2, seed=1234)
    assert [order.locate(place).sample_index for place in range(23)] == PINNED_WINDOWS
