"""Shingles of all documents, as the first pass stores them."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import xxhash

from megatape.data.cleaning.stored.corruption import corrupted_first_pass
from megatape.errors import UserError

# File names.
SHINGLES = "runs.u4"
SHINGLE_ENDS = "run_ends.u8"
# Type of the entries in SHINGLE_ENDS: an entry of zeros, and one for each document.
SHINGLE_ENTRY = np.dtype([("end", "<u8"), ("checksum", "<u8")])
# Units whose shingles are mapped into memory.
NUM_MAPPED_UNITS = 1024


def shingle_checksum(shingles: np.ndarray, row: int) -> int:
    """Return the checksum of a document's shingles, stored with their end."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(shingles).data, seed=row)


class StoredShingles:
    """Shingles of all documents, in mapped files. The kernel keeps as much of them in memory as fits.

    Args:
        folders: First-pass folder of each unit, in order.
        num_documents: Number of documents in each unit.
    """

    def __init__(self, folders: Sequence[Path], num_documents: np.ndarray) -> None:
        self._folders = folders
        self._starts = (np.cumsum(num_documents) - num_documents).tolist()
        self._map = lru_cache(NUM_MAPPED_UNITS)(self._map_unit)

    def number(self, unit: int, row: int) -> int:
        """Return the number of a document in the source."""
        return int(self._starts[unit]) + row

    def of(self, unit: int, row: int) -> np.ndarray:
        """Return the shingles of a document, uint32. Raises UserError if they are not what was written."""
        entries, shingles = self._map(unit)
        # Python's integers, so that damaged ones do not overflow.
        bounds = entries[row : row + 2].tolist()
        if len(bounds) < 2:
            raise self._corrupted(unit)
        begin, _ = bounds[0]
        end, checksum = bounds[1]
        selected = shingles[begin:end]
        if not begin <= end <= shingles.size or shingle_checksum(selected, row) != checksum:
            raise self._corrupted(unit)
        return selected

    def _map_unit(self, unit: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the entries of SHINGLE_ENDS, and all shingles."""
        folder = self._folders[unit]
        return _map_file(folder / SHINGLE_ENDS, SHINGLE_ENTRY), _map_file(folder / SHINGLES, np.dtype("<u4"))

    def _corrupted(self, unit: int) -> UserError:
        return corrupted_first_pass(self._folders[unit] / SHINGLES)


def _map_file(path: Path, item_type: np.dtype) -> np.ndarray:
    """Map the items in a file into memory. An incomplete one at the end is ignored."""
    num_items = path.stat().st_size // item_type.itemsize
    if num_items == 0:
        # An empty file cannot be mapped.
        return np.empty(0, item_type)
    return np.memmap(path, item_type, "r", shape=num_items).view(np.ndarray)
