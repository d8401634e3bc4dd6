"""Exact duplicates: of equal documents the first in the order of the source stays, whoever reads them and when.

One process keeps the hashes of the only unit in memory. With several units a first pass writes the hashes of each, one process
compares all of them, and the second pass leaves out what it found.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

HASH_BYTES = 16  # two different documents with one hash: less likely than 1e-20 among all of C4
AT_ONCE = 2**26  # hashes that are compared at a time, of which each takes about 50 bytes

IsDuplicate = Callable[[str], bool]  # of the documents of a unit, in order


def document_hash(text: str) -> bytes:
    """Equal for equal documents only."""
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def seen_before() -> IsDuplicate:
    """Whether a document was asked about before."""
    hashes: set[bytes] = set()

    def is_duplicate(text: str) -> bool:
        known = len(hashes)
        hashes.add(document_hash(text))
        return len(hashes) == known

    return is_duplicate


def listed(numbers: np.ndarray) -> IsDuplicate:
    """Whether a document's number is among these, which are sorted, when all documents of a unit are asked about in order."""
    left: Iterator[int] = iter(numbers.tolist())
    number, following = -1, next(left, None)

    def is_duplicate(_: str) -> bool:
        nonlocal number, following
        number += 1
        if number != following:
            return False
        following = next(left, None)
        return True

    return is_duplicate


def pack_hashes(hashes: Sequence[bytes]) -> np.ndarray:
    """uint64 [n, 2] of the documents of a unit."""
    return np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2)


def find_duplicates(files: Sequence[Path], at_once: int = AT_ONCE) -> list[np.ndarray]:
    """The numbers of a unit's documents that equal an earlier one, of this unit or one before, for each unit.

    files: `pack_hashes` of each unit, as .npy. Memory is bounded: hashes are compared in parts, by their remainder."""
    counts = [len(np.load(file, mmap_mode="r")) for file in files]
    firsts = np.cumsum([0, *counts])
    num_parts = 1 << max(0, int(firsts[-1]) // at_once).bit_length()
    found = [_repeated(files, firsts, np.uint64(part), np.uint64(num_parts)) for part in range(num_parts)]
    numbers = np.sort(np.concatenate(found))
    ends = np.searchsorted(numbers, firsts)
    return [numbers[begin:end] - first for (begin, end), first in zip(pairwise(ends), firsts, strict=False)]


def _repeated(files: Sequence[Path], firsts: np.ndarray, part: np.uint64, num_parts: np.uint64) -> np.ndarray:
    """Places in the source of those that equal an earlier one, among the hashes of one part."""
    places, hashes = [], []
    for file, first in zip(files, firsts, strict=False):
        all_hashes = np.load(file, mmap_mode="r")
        chosen = np.flatnonzero(all_hashes[:, 0] % num_parts == part)
        places.append(chosen + first)
        hashes.append(all_hashes[chosen])
    place, value = np.concatenate(places), np.concatenate(hashes)
    order = np.lexsort((value[:, 1], value[:, 0]))  # stable: equal ones stay in the order of the source
    value = value[order]
    return place[order[1:][(value[1:] == value[:-1]).all(axis=1)]]
