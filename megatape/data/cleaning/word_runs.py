"""Hashes runs of consecutive words (shingles), for comparing texts.

Words consist of letters, digits and underscores, in lower case. In scripts without spaces between words, each character is a
word.
"""

import re

import numpy as np

# Characters of scripts without spaces between words, as part of a character class.
UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Myanmar, Khmer
    "\u3005\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # Japanese
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Han
)
WORD = re.compile(rf"[^\W{UNSPACED}]+|[{UNSPACED}]")
# Factor of the rolling hash. It is odd, so multiplication modulo 2^64 loses nothing.
FACTOR = np.uint64(0x9E3779B97F4A7C15)


def hash_runs(text: str, length: int) -> np.ndarray:
    """Return the hashes of all runs of `length` consecutive words, uint64 [words - length + 1].

    A shorter text has one run with all of its words, and a text without words has none.
    """
    from xxhash import xxh3_64_intdigest

    words = WORD.findall(text.lower())
    if not words:
        return np.empty(0, np.uint64)
    encoded = " ".join(words).encode().split(b" ")
    hashes = np.fromiter(map(xxh3_64_intdigest, encoded), np.uint64, len(words))
    num_runs = max(1, len(words) - length + 1)
    runs = np.zeros(num_runs, np.uint64)
    for offset in range(min(length, len(words))):
        runs = runs * FACTOR + hashes[offset : offset + num_runs]
    return runs


def contains(sorted_hashes: np.ndarray, hashes: np.ndarray) -> bool:
    """Whether a sorted array contains one of some hashes."""
    if not sorted_hashes.size:
        return False
    indices = np.searchsorted(sorted_hashes, hashes).clip(max=sorted_hashes.size - 1)
    return bool((sorted_hashes[indices] == hashes).any())
