"""The order of samples in windows of shards."""

import numpy as np
import pytest

from megatape.data.training.window import WindowOrder

SEED = 3
PINNED = [3, 1, 0, 4, 2, 13, 12, 5, 11, 15, 10, 8, 7, 9, 14, 6, 19, 21, 22, 17, 18, 16, 20]


@pytest.mark.parametrize("window", [1, 2, 5, 6, 100])
def test_an_epoch_uses_every_sample_once_window_by_window(window: int) -> None:
    samples = np.array([5, 0, 3, 8, 2, 5])
    order, total = WindowOrder("", samples, window, SEED), int(samples.sum())
    shard_of = np.repeat(np.arange(samples.size), samples)
    epochs = []
    for epoch in range(4):
        places = range(epoch * total, (epoch + 1) * total)
        found = [order.locate(place) for place in places]
        assert sorted(location.sample_index for location in found) == list(range(total))
        numbers = [location.window for location in found]
        assert numbers == sorted(numbers) and {number // order.num_windows for number in numbers} == {epoch}
        for number in set(numbers):
            shards = order.shards(number)
            assert 1 <= len(shards) <= window
            read = {int(shard_of[location.sample_index]) for location in found if location.window == number}
            assert read == {shard for shard in shards if samples[shard]}
        epochs.append([location.sample_index for location in found])
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_the_order_is_pinned() -> None:
    """A resumed run needs the order it started with, so the function must never change."""
    order = WindowOrder("", np.array([5, 0, 3, 8, 2, 5]), 2, seed=1234)
    assert [order.locate(place).sample_index for place in range(23)] == PINNED
