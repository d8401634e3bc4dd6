"""The order of samples.

It is a pure function of integers, so the state of the data is one number, for any number of ranks.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

NUM_ROUNDS = 6
MASK = (1 << 64) - 1


class SampleLocation(NamedTuple):
    """A sample of a corpus.

    Attributes:
        corpus: Its name.
        sample_index: In the corpus.
        window: Number of its window over all epochs, 0 in an order without windows.
    """

    corpus: str
    sample_index: int
    window: int = 0


class SampleOrder(ABC):
    """The sample that training takes after any number of others, over all epochs."""

    @abstractmethod
    def locate(self, consumed: int) -> SampleLocation:
        """The sample after `consumed` others."""

    def upcoming_shards(self, location: SampleLocation) -> list[int]:
        """Shards of the location's corpus with its window and the next one; none without windows."""
        return []

    def digest(self, consumed: Iterable[int]) -> int:
        """`samples_digest` of samples, given by the number of others before each."""
        return samples_digest(map(self.locate, consumed))


class ShuffledOrder(SampleOrder):
    """All samples of a corpus, in another permutation each epoch."""

    def __init__(self, corpus: str, num_samples: int, seed: int) -> None:
        self._corpus = corpus
        self._num_samples = num_samples
        self._seed = seed

    def locate(self, consumed: int) -> SampleLocation:
        return SampleLocation(self._corpus, sample_index(consumed, self._num_samples, self._seed))


class WindowOrder(SampleOrder):
    """Each epoch permutes the shards of a corpus, and then the samples of every `window` shards in a row.

    Args:
        corpus: Its name.
        shard_samples: Number of samples of each shard, int64 [shards].
        window: Number of shards that are mixed.
        seed: Seed of the permutations.
    """

    def __init__(self, corpus: str, shard_samples: np.ndarray, window: int, seed: int) -> None:
        self._corpus = corpus
        self._samples = shard_samples
        self._window = window
        self._seed = seed
        self._num_samples = int(shard_samples.sum())
        # First sample of each shard.
        self._first = np.cumsum(shard_samples) - shard_samples
        self._epoch = lru_cache(maxsize=2)(self._arrange)
        self.num_windows = -(-shard_samples.size // window)

    def locate(self, consumed: int) -> SampleLocation:
        epoch, place = divmod(consumed, self._num_samples)
        shards, ends = self._epoch(epoch)
        window = int(np.searchsorted(ends[:: self._window], place, side="right")) - 1
        first = window * self._window
        last = min((window + 1) * self._window, shards.size)
        begin = int(ends[first])
        end = int(ends[last])
        mixed = begin + permuted(place - begin, end - begin, f"window {self._seed} {epoch} {window}")
        shard = int(np.searchsorted(ends, mixed, side="right")) - 1
        index = int(self._first[shards[shard]]) + mixed - int(ends[shard])
        return SampleLocation(self._corpus, index, epoch * self.num_windows + window)

    def upcoming_shards(self, location: SampleLocation) -> list[int]:
        return [*self.shards(location.window), *self.shards(location.window + 1)]

    def shards(self, window: int) -> list[int]:
        """Shards of a window, by its number over all epochs."""
        epoch, number = divmod(window, self.num_windows)
        shards, _ = self._epoch(epoch)
        return shards[number * self._window : (number + 1) * self._window].tolist()

    def _arrange(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards of an epoch in order, [shards], and the samples before each and in all, [shards + 1]."""
        size = self._samples.size
        shards = np.array([permuted(place, size, f"shards {self._seed} {epoch}") for place in range(size)])
        return shards, np.r_[0, np.cumsum(self._samples[shards])]


def sample_index(consumed: int, num_samples: int, seed: int) -> int:
    """The index of the sample after `consumed` others, over all epochs; each epoch is a new permutation."""
    epoch, index = divmod(consumed, num_samples)
    return permuted(index, num_samples, f"order {seed} {epoch}")


def sample_hash(seed: int, consumed: int, modulus: int) -> int:
    """A uniform number in [0, modulus), determined by the seed and the number of samples before this one."""
    return int.from_bytes(_digest(f"sample {seed} {consumed}", 8), "little") % modulus


def samples_digest(samples: Iterable[SampleLocation]) -> int:
    """A number for some samples, in any order.

    It is the sum of a hash of each, of 32 bits, so that the ranks of a step can add theirs up, exactly even as float64 for two
    million samples.
    """
    return sum(int.from_bytes(_digest(f"{sample.corpus} {sample.sample_index}", 4), "little") for sample in samples)


# Cached because the digest of a step needs its samples again.
@lru_cache(maxsize=1024)
def permuted(index: int, size: int, name: str) -> int:
    """A bijection of [0, size), another for each name.

    It is a Feistel network over the next even number of bits, applied until the result is inside. The code is written for
    speed: each sample of a run passes here.
    """
    keys = _round_keys(name)
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left = index >> half
        right = index & mask
        # Multiply and shift 64 bits, twice. The odd constants are from the golden ratio and from pi.
        for key in keys:
            mixed = (right ^ key) * 0x9E3779B97F4A7C15 & MASK
            mixed = (mixed ^ mixed >> 32) * 0x243F6A8885A308D3
            left, right = right, left ^ (mixed ^ mixed >> 32) & mask
        index = left << half | right
        if index < size:
            return index


@lru_cache(maxsize=64)
def _round_keys(name: str) -> tuple[int, ...]:
    return tuple(np.frombuffer(_digest(name, 8 * NUM_ROUNDS), "<u8").tolist())


def _digest(text: str, num_bytes: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=num_bytes).digest()
