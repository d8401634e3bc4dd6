"""An order of samples that reads shards one after the other, mixing the samples of some at a time."""

from functools import lru_cache

import numpy as np

from megatape.data.training.order import SampleLocation, SampleOrder, permuted


class WindowOrder(SampleOrder):
    """Each epoch permutes the shards of a corpus, and then the samples of every `window` shards in a row.

    Args:
        corpus: Its name.
        shard_samples: Number of samples of each shard, int64 [shards].
        window: Number of shards that are mixed.
        seed: Of the permutations.
    """

    def __init__(self, corpus: str, shard_samples: np.ndarray, window: int, seed: int) -> None:
        self._corpus, self._samples, self._window, self._seed = corpus, shard_samples, window, seed
        self._num_samples = int(shard_samples.sum())
        self._first = np.cumsum(shard_samples) - shard_samples  # sample of each shard
        self._epoch = lru_cache(maxsize=2)(self._arrange)
        self.num_windows = -(-shard_samples.size // window)

    def locate(self, consumed: int) -> SampleLocation:
        epoch, place = divmod(consumed, self._num_samples)
        shards, ends = self._epoch(epoch)
        window = int(np.searchsorted(ends[:: self._window], place, side="right")) - 1
        first, last = window * self._window, min((window + 1) * self._window, shards.size)
        begin, end = int(ends[first]), int(ends[last])
        mixed = begin + permuted(place - begin, end - begin, f"window {self._seed} {epoch} {window}")
        shard = int(np.searchsorted(ends, mixed, side="right")) - 1
        index = int(self._first[shards[shard]]) + mixed - int(ends[shard])
        return SampleLocation(self._corpus, index, epoch * self.num_windows + window)

    def upcoming_shards(self, location: SampleLocation) -> list[int]:
        return [*self.shards(location.window), *self.shards(location.window + 1)]

    def shards(self, window: int) -> list[int]:
        """Those of a window, by its number over all epochs."""
        epoch, number = divmod(window, self.num_windows)
        shards, _ = self._epoch(epoch)
        found: list[int] = shards[number * self._window : (number + 1) * self._window].tolist()
        return found

    def _arrange(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards of an epoch in order, [shards], and the samples before each and in all, [shards + 1]."""
        size = self._samples.size
        shards = np.array([permuted(place, size, f"shards {self._seed} {epoch}") for place in range(size)])
        return shards, np.r_[0, np.cumsum(self._samples[shards])]
