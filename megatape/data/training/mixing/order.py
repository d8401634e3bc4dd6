"""Sample order of a corpus, a pure function of integers.

So the data's state is a single number: how many samples have been consumed. It does not depend on the ranks.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from megatape.utils.values.rounding import divide_up

# Indices permuted at a time, which bounds memory.
INDICES_AT_ONCE = 2**16
# Number of rounds in the Feistel network.
NUM_ROUNDS = 6
MASK = (1 << 64) - 1
# Odd multipliers, from the golden ratio and from pi.
GOLDEN_RATIO = 0x9E3779B97F4A7C15
PI = 0x243F6A8885A308D3


class SampleLocation(NamedTuple):
    """Sample of a corpus.

    Attributes:
        corpus: Corpus name.
        sample_index: Index of the sample in the corpus.
        window: The sample's window, numbered over all epochs; 0 in an order without windows.
    """

    corpus: str
    sample_index: int
    window: int = 0


class SampleOrder(ABC):
    """Base class of sample orders. Samples are counted over all epochs."""

    @abstractmethod
    def locate(self, consumed: int) -> SampleLocation:
        """Return the sample after `consumed` others."""

    def upcoming_shards(self, location: SampleLocation) -> list[int]:
        """Return the shards in the location's window and in the next one, none in an order without windows."""
        return []

    def digest(self, consumed: Iterable[int]) -> int:
        """Return the `samples_digest` of samples, given how many samples precede each."""
        return samples_digest(map(self.locate, consumed))


class ShuffledOrder(SampleOrder):
    """Permutes all samples of a corpus, anew in each epoch."""

    def __init__(self, corpus: str, num_samples: int, seed: int) -> None:
        self._corpus = corpus
        self._num_samples = num_samples
        self._seed = seed

    def locate(self, consumed: int) -> SampleLocation:
        return SampleLocation(self._corpus, sample_index(consumed, self._num_samples, self._seed))


class _Epoch(NamedTuple):
    """Shards in the order of an epoch.

    Attributes:
        shards: Shard numbers, [shards].
        ends: Samples before each of them, and in all, [shards + 1].
    """

    shards: np.ndarray
    ends: np.ndarray


class WindowOrder(SampleOrder):
    """Permutes the shards of a corpus in each epoch, then the samples in every `window` consecutive shards.

    Args:
        corpus: Corpus name.
        shard_samples: Samples per shard, int64 [shards].
        window: Shards to mix.
        seed: Seed of the permutations.

    Attributes:
        num_windows: Windows per epoch.
    """

    def __init__(self, corpus: str, shard_samples: np.ndarray, window: int, seed: int) -> None:
        self._corpus = corpus
        self._samples = shard_samples
        self._window = window
        self._seed = seed
        self._num_samples = int(shard_samples.sum())
        # First sample of each shard.
        self._first = np.cumsum(shard_samples) - shard_samples
        self._epoch = lru_cache(maxsize=2)(self._permuted_shards)
        self.num_windows = divide_up(shard_samples.size, window)

    def locate(self, consumed: int) -> SampleLocation:
        epoch, position = divmod(consumed, self._num_samples)
        shards, ends = self._epoch(epoch)
        window = int(np.searchsorted(ends[:: self._window], position, side="right")) - 1
        first = window * self._window
        last = min((window + 1) * self._window, shards.size)
        begin = int(ends[first])
        end = int(ends[last])
        mixed = begin + permuted(position - begin, end - begin, f"window {self._seed} {epoch} {window}")
        shard = int(np.searchsorted(ends, mixed, side="right")) - 1
        index_in_shard = mixed - int(ends[shard])
        index = int(self._first[shards[shard]]) + index_in_shard
        return SampleLocation(self._corpus, index, epoch * self.num_windows + window)

    def upcoming_shards(self, location: SampleLocation) -> list[int]:
        return [*self.shards(location.window), *self.shards(location.window + 1)]

    def shards(self, window: int) -> list[int]:
        """Return the shards in a window, given its number over all epochs."""
        epoch, number = divmod(window, self.num_windows)
        shards = self._epoch(epoch).shards
        return shards[number * self._window : (number + 1) * self._window].tolist()

    def _permuted_shards(self, epoch: int) -> _Epoch:
        num_shards = self._samples.size
        name = f"shards {self._seed} {epoch}"
        shards = permutation(num_shards, name)
        return _Epoch(shards, np.r_[0, np.cumsum(self._samples[shards])])


def sample_index(consumed: int, num_samples: int, seed: int) -> int:
    """Return the index of the sample after `consumed` others, permuting anew in each epoch."""
    epoch, index = divmod(consumed, num_samples)
    return permuted(index, num_samples, f"order {seed} {epoch}")


def sample_hash(seed: int, consumed: int, modulus: int) -> int:
    """Return a uniform number in [0, modulus), depending on the seed and on how many samples precede this one."""
    digest = _digest(f"sample {seed} {consumed}", 8)
    return int.from_bytes(digest, "little") % modulus


def samples_digest(samples: Iterable[SampleLocation]) -> int:
    """Return an order-independent digest of samples.

    It sums a 32-bit hash of each sample, so ranks can add up their digests. If each sample is counted once, the sum over a step
    is exact in float64, because it stays below 2^53 (MAX_STEP_SAMPLES).
    """
    total = 0
    for sample in samples:
        digest = _digest(f"{sample.corpus} {sample.sample_index}", 4)
        total += int.from_bytes(digest, "little")
    return total


# Cached, because a step's digest locates its samples again.
@lru_cache(maxsize=1024)
def permuted(index: int, size: int, name: str) -> int:
    """Permute [0, size): return the image of an index. The name selects the permutation.

    This is a Feistel network over the next even number of bits, applied until the result is below `size`. The code is written
    for speed, because it runs for every sample.
    """
    keys = _round_keys(name)
    half = _half_bits(size)
    mask = (1 << half) - 1
    while True:
        left = index >> half
        right = index & mask
        for key in keys:
            # Multiply and shift 64 bits, twice.
            mixed = (right ^ key) * GOLDEN_RATIO & MASK
            mixed = (mixed ^ mixed >> 32) * PI
            left, right = right, left ^ (mixed ^ mixed >> 32) & mask
        index = left << half | right
        if index < size:
            return index


def permutation(size: int, name: str) -> np.ndarray:
    """Return the image of every index under `permuted`, int64 [size]."""
    permuted_indices = np.empty(size, np.int64)
    for begin in range(0, size, INDICES_AT_ONCE):
        end = min(begin + INDICES_AT_ONCE, size)
        images = _encrypted(np.arange(begin, end, dtype=np.uint64), size, name)
        outside = np.flatnonzero(images >= size)
        while outside.size:
            images[outside] = _encrypted(images[outside], size, name)
            outside = outside[images[outside] >= size]
        permuted_indices[begin:end] = images
    return permuted_indices


def _encrypted(indices: np.ndarray, size: int, name: str) -> np.ndarray:
    """Apply the network of `permuted` once. Products of uint64 are taken modulo 2^64."""
    half = np.uint64(_half_bits(size))
    mask = np.uint64((1 << int(half)) - 1)
    shift = np.uint64(32)
    left = indices >> half
    right = indices & mask
    for key in _round_keys(name):
        mixed = (right ^ np.uint64(key)) * np.uint64(GOLDEN_RATIO)
        mixed = (mixed ^ (mixed >> shift)) * np.uint64(PI)
        left, right = right, left ^ ((mixed ^ (mixed >> shift)) & mask)
    return left << half | right


def _half_bits(size: int) -> int:
    return max(1, ((size - 1).bit_length() + 1) // 2)


@lru_cache(maxsize=64)
def _round_keys(name: str) -> tuple[int, ...]:
    return tuple(np.frombuffer(_digest(name, 8 * NUM_ROUNDS), "<u8").tolist())


def _digest(text: str, num_bytes: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=num_bytes).digest()
