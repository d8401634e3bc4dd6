"""Files with items of all units, such as rows of documents to drop, of which a process reads those of some units.

Layout, little-endian: the number of items up to the end of each unit, uint64, a checksum of each unit's items, uint64, and the
items in the order of the units. A checksum depends on the unit and on the number of items before it, so it also covers the
numbers.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from megatape.errors import UserError
from megatape.utils.files.files import open_regular

NUMBER = np.dtype("<u8")
# Item: the row of a document in its unit.
ROW = np.dtype("<u4")
# Item: the row of a document, and the number of a similar earlier one in the source.
PAIR = np.dtype([("row", "<u4"), ("earlier", "<u8")])


def pack_items(items: Sequence[np.ndarray]) -> bytes:
    """Return the content of a file with the items of each unit, of any type."""
    ends = np.cumsum([part.size for part in items])
    checksums = np.empty(len(items), NUMBER)
    begin = 0
    for unit, (part, end) in enumerate(zip(items, ends.tolist(), strict=True)):
        checksums[unit] = _checksum(np.ascontiguousarray(part).view(np.uint8).data, unit, begin)
        begin = end
    return b"".join([ends.astype(NUMBER).tobytes(), checksums.tobytes(), *(part.tobytes() for part in items)])


def split_by_unit(units: np.ndarray, items: np.ndarray, num_units: int) -> list[np.ndarray]:
    """Return the items of each unit, given the unit of each item in ascending order."""
    return np.split(items, np.searchsorted(units, np.arange(1, num_units)))


class UnitItems:
    """Reads a file of `pack_items`.

    Args:
        path: The file.
        item_type: Type of the items.
        num_units: Number of units.
    """

    def __init__(self, path: Path, item_type: np.dtype, num_units: int) -> None:
        self._path = path
        self._type = item_type
        self._num_units = num_units

    def counts(self, first: int, end: int) -> np.ndarray:
        """Return the number of items of some units, int64 [end - first]. `read` verifies it."""
        with open_regular(self._path) as file:
            return np.diff(self._ends(file.fileno(), first, end))

    def read(self, first: int, end: int) -> list[np.ndarray]:
        """Return the items of some consecutive units, one array per unit.

        Raises:
            UserError: The items are not what was written.
        """
        item_bytes = self._type.itemsize
        with open_regular(self._path) as file:
            descriptor = file.fileno()
            ends = self._ends(descriptor, first, end)
            offset = (self._num_units + first) * NUMBER.itemsize
            checksums = np.frombuffer(self._read(descriptor, offset, (end - first) * NUMBER.itemsize), NUMBER)
            items_offset = 2 * self._num_units * NUMBER.itemsize + int(ends[0]) * item_bytes
            content = self._read(descriptor, items_offset, int(ends[-1] - ends[0]) * item_bytes)
        view = memoryview(content)
        items = []
        for number, expected in enumerate(checksums.tolist()):
            begin = int(ends[number])
            part = view[(begin - int(ends[0])) * item_bytes : (int(ends[number + 1]) - int(ends[0])) * item_bytes]
            if _checksum(part, first + number, begin) != expected:
                raise self._corrupted()
            items.append(np.frombuffer(part, self._type))
        return items

    def _ends(self, descriptor: int, first: int, end: int) -> np.ndarray:
        """Return the number of items before each of some units, and up to their end, int64 [end - first + 1]."""
        begin = max(first - 1, 0)
        ends = np.frombuffer(self._read(descriptor, begin * NUMBER.itemsize, (end - begin) * NUMBER.itemsize), NUMBER)
        if first == 0:
            ends = np.append(NUMBER.type(0), ends)
        ends = ends.astype(np.int64)
        if (np.diff(ends) < 0).any():
            raise self._corrupted()
        return ends

    def _read(self, descriptor: int, offset: int, num_bytes: int) -> bytes:
        file_bytes = os.fstat(descriptor).st_size
        if not 0 <= offset <= offset + num_bytes <= file_bytes:
            raise self._corrupted()
        return os.pread(descriptor, num_bytes, offset)

    def _corrupted(self) -> UserError:
        return UserError(f"{self._path}: corrupted: remove it, and the same command compares the documents again")


def _checksum(content: memoryview, unit: int, begin: int) -> int:
    return xxhash.xxh3_64_intdigest(content, seed=(begin << 24) + unit)
