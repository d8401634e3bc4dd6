"""An order of samples that reads shards one after the other: shards are permuted, and samples within windows of some shards."""

from functools import lru_cache

import numpy as np

from megatape.data.training.order import permuted


class WindowOrder:
    """samples: of each shard, int64 [shards]. window: how many shards, one after the other in the order of an epoch, are mixed.

    Like order.sample_index a function of integers: each epoch has each sample once.
    """

    def __init__(self, samples: np.ndarray, window: int) -> None:
        self._samples, self._window = samples, window
        self._first = np.cumsum(samples) - samples  # sample of each shard
        self._epoch = lru_cache(maxsize=2)(self._arranged)
        self.num_windows = -(-samples.size // window)

    def locate(self, place: int, seed: int) -> tuple[int, int]:
        """The sample that comes after `place` others, and the number of its window, over all epochs."""
        epoch, index = divmod(place, int(self._samples.sum()))
        shards, ends = self._epoch(seed, epoch)
        begins = ends[:: self._window]
        window = int(np.searchsorted(begins, index, side="right")) - 1
        first, last = window * self._window, min((window + 1) * self._window, shards.size)
        size = int(ends[last] - ends[first])
        mixed = int(ends[first]) + permuted(index - int(ends[first]), size, f"window {seed} {epoch} {window}")
        shard = int(np.searchsorted(ends, mixed, side="right")) - 1
        return int(self._first[shards[shard]]) + mixed - int(ends[shard]), epoch * self.num_windows + window

    def shards(self, window: int, seed: int) -> list[int]:
        """Those of a window, by its number over all epochs."""
        epoch, number = divmod(window, self.num_windows)
        shards, _ = self._epoch(seed, epoch)
        found: list[int] = shards[number * self._window : (number + 1) * self._window].tolist()
        return found

    def _arranged(self, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards of an epoch in order, [shards], and the samples before each and in all, [shards + 1]."""
        size = self._samples.size
        shards = np.array([permuted(place, size, f"shards {seed} {epoch}") for place in range(size)])
        return shards, np.r_[0, np.cumsum(self._samples[shards])]
