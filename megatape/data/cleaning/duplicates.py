"""Exact duplicates: hashes of documents, and which of them occurred before."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

HASH_BYTES = 16  # two different documents with one hash: less likely than 1e-20 among all of C4
AT_ONCE = 2**26  # hashes that are compared at a time, of which each takes about 50 bytes

LoadHashes = Callable[[], np.ndarray]  # those of a unit's documents, uint64 [n, k]


def document_hash(text: str) -> bytes:
    """Equal for equal documents only."""
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def seen_before() -> Callable[[str], bool]:
    """Whether a document was asked about before."""
    hashes: set[bytes] = set()

    def is_duplicate(text: str) -> bool:
        known = len(hashes)
        hashes.add(document_hash(text))
        return len(hashes) == known

    return is_duplicate


def pack_hashes(hashes: bytes | bytearray) -> np.ndarray:
    """uint64 [n, 2] of the documents of a unit, whose hashes follow each other."""
    return np.frombuffer(hashes, "<u8").reshape(-1, 2)


def repeated(units: Sequence[LoadHashes], at_once: int = AT_ONCE, beat: Callable[[], None] = lambda: None) -> np.ndarray:
    """Whether a document has the hash of an earlier one, of its unit or one before: bool [documents of all units in order].

    Memory is bounded: hashes are compared in parts, by their remainder. beat: called for every unit of every part.
    """
    firsts = np.cumsum([0, *(len(load()) for load in units)])
    num_parts = 1 << max(0, int(firsts[-1]) // at_once).bit_length()
    flags = np.zeros(firsts[-1], bool)
    for part in range(num_parts):
        places, hashes = [], []
        for load, first in zip(units, firsts, strict=False):
            beat()
            all_hashes = load()
            chosen = np.flatnonzero(all_hashes[:, 0] % np.uint64(num_parts) == np.uint64(part))
            places.append(chosen + first)
            hashes.append(all_hashes[chosen])
        place, value = np.concatenate(places), np.concatenate(hashes)
        order = np.lexsort(value.T)  # stable: equal ones stay in the order of the source
        value = value[order]
        flags[place[order[1:][(value[1:] == value[:-1]).all(axis=1)]]] = True
    return flags
