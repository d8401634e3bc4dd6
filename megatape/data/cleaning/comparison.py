"""Compares the documents of all units, by the hashes and keys stored in the first pass."""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from megatape.data.cleaning.arrays import CORRUPTED_ARRAYS, pack_arrays
from megatape.data.cleaning.first_pass import CODES, KEYS, SHINGLE_ENDS, SHINGLES
from megatape.data.cleaning.near_duplicates import Bucket, NearDuplicates
from megatape.errors import UserError

# Array name in results of `compare`.
PAIRS = "pairs"
# Hashes compared at a time. Each takes about 50 bytes.
HASHES_AT_ONCE = 2**25
# Units whose shingles are mapped into memory.
NUM_MAPPED_UNITS = 1024


def compare(folders: Sequence[Path], name: str, near: NearDuplicates | None, heartbeat: Callable[[], None]) -> bytes:
    """Compare all documents by one array of FirstPass.

    Memory: about 50 bytes for each of up to HASHES_AT_ONCE hashes, 2 bytes per document, and 16 bytes per pair of similar
    documents.

    Args:
        folders: First-pass folder of each unit, in order.
        name: Array name, one of `Cleaning.comparisons`.
        near: Rule deciding whether documents with equal keys are similar. None: documents with equal hashes are equal.
        heartbeat: Called repeatedly, to renew the lease.

    Returns:
        Content of an .npz file: flags for `FirstPassUnit`, set for exact duplicates. With `near`, pairs of similar documents
        for `near_duplicate_flags`.
    """
    ends = _document_ends(folders)
    groups = equal_groups([partial(_load, folder, name) for folder in folders], heartbeat=heartbeat)
    if near is None:
        is_duplicate = np.zeros(ends[-1], bool)
        for group in groups:
            is_duplicate[group[1:]] = True
        return _flags_by_unit(is_duplicate, ends)

    shingles = _Shingles(folders, ends)
    pairs = array("Q")
    for group in groups:
        bucket: Bucket = []
        for number in group.tolist():
            heartbeat()
            for earlier in near.matches_bucket(number, shingles.of(number), bucket):
                pairs.extend((number, earlier))
    return pack_arrays({PAIRS: np.array(pairs, np.uint64).reshape(-1, 2)})


def near_duplicate_flags(folders: Sequence[Path], comparisons: Sequence[Path], heartbeat: Callable[[], None]) -> bytes:
    """Decide which documents are near duplicates of kept documents.

    Memory: about 100 bytes per pair of similar documents, and 2 bytes per document.

    Args:
        folders: First-pass folder of each unit, in order.
        comparisons: Results of `compare` for all bands.
        heartbeat: Called repeatedly, to renew the lease.

    Returns:
        Content of an .npz file: flags for `FirstPassUnit`, set for near duplicates.
    """
    ends = _document_ends(folders)
    pairs = [np.empty((0, 2), np.uint64)]
    for file in comparisons:
        heartbeat()
        pairs.append(read_comparison(file, PAIRS))
    # Sorted by the later document of each pair, so that the decision about the earlier one is final.
    in_order = np.unique(np.concatenate(pairs), axis=0).tolist()
    is_dropped = np.zeros(ends[-1], bool)
    for number, earlier in in_order:
        heartbeat()
        if not is_dropped[earlier]:
            is_dropped[number] = True
    return _flags_by_unit(is_dropped, ends)


def read_comparison(file: Path, name: str) -> np.ndarray:
    """Read an array from the result of `compare` or `near_duplicate_flags`. Raises UserError if the file is corrupted."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            loaded: np.ndarray = arrays[name]
    except CORRUPTED_ARRAYS as error:
        raise UserError(
            f"{file}: corrupted ({error!r}): remove it, and the same command compares the documents again"
        ) from error
    return loaded


def equal_groups(
    units: Sequence[Callable[[], np.ndarray]],
    at_once: int = HASHES_AT_ONCE,
    heartbeat: Callable[[], None] = lambda: None,
) -> Iterator[np.ndarray]:
    """Yield groups of documents with the same hash, as document numbers in order.

    Args:
        units: Functions loading the hashes of each unit, uint64 [n, k], in order.
        at_once: Hashes to compare at a time, which bounds memory. Hashes are split into parts by their remainder.
        heartbeat: Called for every unit in every part.
    """
    unit_starts = np.cumsum([0, *(len(load()) for load in units)])
    num_documents = int(unit_starts[-1])
    num_parts = 1 << max(0, num_documents // at_once).bit_length()
    for part in range(num_parts):
        numbers_by_unit = []
        hashes_by_unit = []
        for load, start in zip(units, unit_starts, strict=False):
            heartbeat()
            unit_hashes = load()
            rows = np.flatnonzero(unit_hashes[:, 0] % np.uint64(num_parts) == np.uint64(part))
            numbers_by_unit.append(rows + start)
            hashes_by_unit.append(unit_hashes[rows])
        numbers = np.concatenate(numbers_by_unit)
        hashes = np.concatenate(hashes_by_unit)

        # The sort is stable, so documents with equal hashes stay in the order of the source.
        order = np.lexsort(hashes.T)
        numbers = numbers[order]
        hashes = hashes[order]
        equals_previous = (hashes[1:] == hashes[:-1]).all(axis=1)
        is_same = np.concatenate([[False], equals_previous, [False]])
        for begin, last in np.flatnonzero(is_same[1:] != is_same[:-1]).reshape(-1, 2):
            yield numbers[begin : last + 1]


class _Shingles:
    """Shingles of all documents, in mapped files. The kernel keeps as much of them in memory as fits.

    Args:
        folders: First-pass folder of each unit, in order.
        unit_ends: Result of `_document_ends`.
    """

    def __init__(self, folders: Sequence[Path], unit_ends: np.ndarray) -> None:
        self._folders = folders
        self._unit_starts = [0, *unit_ends.tolist()]
        self._ends_of_unit = lru_cache(NUM_MAPPED_UNITS)(self._map_ends)
        self._shingles_of_unit = lru_cache(NUM_MAPPED_UNITS)(self._map_shingles)

    def of(self, number: int) -> np.ndarray:
        """Return the shingles of a document, uint32."""
        unit = bisect_right(self._unit_starts, number) - 1
        row = number - self._unit_starts[unit]
        begin, end = self._ends_of_unit(unit)[row : row + 2].tolist()
        if begin == end:
            # An empty file cannot be mapped.
            return np.empty(0, np.uint32)
        return self._shingles_of_unit(unit)[begin:end]

    def _map_ends(self, unit: int) -> np.ndarray:
        return np.load(self._folders[unit] / SHINGLE_ENDS, mmap_mode="r")

    def _map_shingles(self, unit: int) -> np.ndarray:
        return np.memmap(self._folders[unit] / SHINGLES, np.uint32, "r")


def _document_ends(folders: Sequence[Path]) -> np.ndarray:
    """Return, for each unit, the number of documents up to its end."""
    return np.cumsum([_load(folder, CODES).size for folder in folders])


def _flags_by_unit(flags: np.ndarray, ends: np.ndarray) -> bytes:
    """Return an .npz file with an array of bits per unit. flags: bool [documents], in unit order."""
    parts = np.split(flags, ends[:-1])
    return pack_arrays({str(number): np.packbits(part) for number, part in enumerate(parts)})


def _load(folder: Path, name: str) -> np.ndarray:
    with np.load(folder / KEYS, allow_pickle=False) as arrays:
        return arrays[name]
