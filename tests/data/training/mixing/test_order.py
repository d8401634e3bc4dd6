"""Order of samples: a permutation for each epoch, over the whole corpus or in windows of shards."""

import numpy as np
import pytest

from megatape.data.training.mixing.order import WindowOrder, permutation, permuted, sample_hash, sample_index

PINNED = [1, 5, 3, 8, 6, 7, 9, 0, 2, 4, 9, 2, 4, 5, 6, 8, 3, 0, 1, 7]
PINNED_WINDOWS = [3, 1, 0, 4, 2, 13, 12, 5, 11, 15, 10, 8, 7, 9, 14, 6, 19, 21, 22, 17, 18, 16, 20]


def sample_order(size: int, seed: int, epoch: int = 0) -> list[int]:
    """Return the sample indices of one epoch, in order."""
    positions = range(epoch * size, (epoch + 1) * size)
    return [sample_index(consumed, size, seed) for consumed in positions]


def hashes(seed: int, count: int) -> list[int]:
    return [sample_hash(seed, consumed, 10) for consumed in range(count)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000, 4097])
def test_every_epoch_is_a_permutation(size: int) -> None:
    for epoch in range(3):
        assert sorted(sample_order(size, seed=5, epoch=epoch)) == list(range(size))


def test_epochs_and_seeds_differ() -> None:
    orders = set()
    for seed in (0, 1, 2):
        for epoch in (0, 1):
            orders.add(tuple(sample_order(1000, seed, epoch)))
    assert len(orders) == 6


def test_order_looks_random() -> None:
    size = 20_011
    identity = np.arange(size)
    order = np.array(sample_order(size, seed=3))
    correlation_with_position = np.corrcoef(identity, order)[0, 1]
    correlation_of_neighbors = np.corrcoef(order[:-1], order[1:])[0, 1]

    assert abs(correlation_with_position) < 0.03
    assert abs(correlation_of_neighbors) < 0.03
    # A random permutation has about one fixed point, and keeps about one pair of neighbors.
    assert np.count_nonzero(order == identity) < 8
    assert np.count_nonzero(np.diff(order) == 1) < 8


def test_order_is_pinned() -> None:
    """A resumed run needs the order it started with, so the function must never change."""
    assert [sample_index(consumed, 10, 1234) for consumed in range(20)] == PINNED


def test_sample_hash_is_uniform() -> None:
    counts = np.bincount(hashes(7, 20_000), minlength=10)
    assert np.abs(counts - 2000).max() < 200


def test_sample_hash_depends_on_the_seed() -> None:
    assert hashes(7, 100) == hashes(7, 100)
    assert hashes(7, 100) != hashes(8, 100)


def test_sizes_beyond_32_bits() -> None:
    size = 2**40 + 7
    samples = {sample_index(consumed, size, 0) for consumed in range(1000)}
    assert len(samples) == 1000
    assert 0 <= sample_index(size - 1, size, 0) < size


@pytest.mark.parametrize("window", [1, 2, 5, 6, 100])
def test_an_epoch_uses_every_sample_once_window_by_window(window: int) -> None:
    shard_samples = np.array([5, 0, 3, 8, 2, 5])
    num_samples = int(shard_samples.sum())
    shard_of_sample = np.repeat(np.arange(shard_samples.size), shard_samples)
    order = WindowOrder("", shard_samples, window, seed=3)

    epochs = set()
    for epoch in range(4):
        locations = [order.locate(consumed) for consumed in range(epoch * num_samples, (epoch + 1) * num_samples)]
        samples = [location.sample_index for location in locations]
        assert sorted(samples) == list(range(num_samples))

        windows = [location.window for location in locations]
        assert windows == sorted(windows)
        assert {number // order.num_windows for number in windows} == {epoch}
        for number in set(windows):
            shards = order.shards(number)
            assert 1 <= len(shards) <= window
            shards_with_samples = {shard for shard in shards if shard_samples[shard]}
            shards_read = {int(shard_of_sample[location.sample_index]) for location in locations if location.window == number}
            assert shards_read == shards_with_samples
        epochs.add(tuple(samples))
    assert len(epochs) == 4


def test_the_order_by_windows_is_pinned() -> None:
    """A resumed run needs the order it started with, so the function must never change."""
    order = WindowOrder("", np.array([5, 0, 3, 8, 2, 5]), 2, seed=1234)
    assert [order.locate(consumed).sample_index for consumed in range(23)] == PINNED_WINDOWS


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000, 4097, 70_001])
def test_the_permutation_has_the_images_of_single_indices(size: int) -> None:
    """Shards are permuted together, samples one at a time."""
    images = permutation(size, "a name")

    assert np.array_equal(np.sort(images), np.arange(size))
    indices = range(0, size, 1 + size // 1000)
    assert images[:: indices.step].tolist() == [permuted(index, size, "a name") for index in indices]
