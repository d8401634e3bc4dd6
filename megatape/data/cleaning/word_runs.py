"""Runs of words of a text, by which texts are compared.

Words are runs of letters, digits and underscores, in lower case: punctuation and white space do not count. In scripts that are
written without spaces between words, each character is a word.
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
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd: nothing is lost modulo 2^64


def hash_runs(text: str, length: int) -> np.ndarray:
    """Hashes of the runs of `length` words, uint64 [words - length + 1]; of all words if there are fewer; empty without any."""
    from xxhash import xxh3_64_intdigest  # which comes with datasets

    words = WORD.findall(text.lower())
    if not words:
        return np.empty(0, np.uint64)
    encoded = " ".join(words).encode().split(b" ")
    hashes = np.fromiter(map(xxh3_64_intdigest, encoded), np.uint64, len(words))
    count = max(1, len(words) - length + 1)
    runs = np.zeros(count, np.uint64)
    for begin in range(min(length, len(words))):
        runs = runs * FACTOR + hashes[begin : begin + count]
    return runs


def contains(known: np.ndarray, hashes: np.ndarray) -> bool:
    """Whether one of the hashes is among `known`, which is sorted."""
    return bool(known.size and (known[np.searchsorted(known, hashes).clip(max=known.size - 1)] == hashes).any())
