"""Sorted hashes and keys of a unit's documents, of which a process reads and verifies one range at a time.

A file has a column for each comparison. The hash space is divided into NUM_BUCKETS buckets of equal size, and a range consists
of consecutive buckets. Layout of a file, little-endian:

    tables   for each column: the number of records up to the end of each bucket, uint32, a checksum of each bucket, uint64, and
             a checksum of the table
    records  for each column: the records in the order of their keys

All columns have as many records as the unit has documents. Readers verify what they read, so they need no other part of the
file.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from megatape.data.cleaning.stored.corruption import corrupted_first_pass
from megatape.utils.files.files import open_regular

# Enough to compare 1.3 * 10^10 documents with 2 GiB of memory in each process, at BYTES_PER_HASH of comparison.py.
BUCKET_BITS = 9
NUM_BUCKETS = 2**BUCKET_BITS
END = np.dtype("<u4")
CHECKSUM = np.dtype("<u8")
ENDS_BYTES = NUM_BUCKETS * END.itemsize
TABLE_BYTES = ENDS_BYTES + (NUM_BUCKETS + 1) * CHECKSUM.itemsize
# A key, and the row of its document in the unit.
KEY_RECORD = np.dtype([("key", "<u8"), ("row", "<u4")])
# The two halves of a hash, and the row.
HASH_RECORD = np.dtype([("key", "<u8"), ("rest", "<u8"), ("row", "<u4")])


class BucketRange(NamedTuple):
    """Consecutive buckets of a column.

    Attributes:
        column: Index of the column.
        first: First bucket.
        end: End of the buckets.
    """

    column: int
    first: int
    end: int


def pack_columns(columns: Sequence[np.ndarray]) -> bytes:
    """Return the content of a file.

    Args:
        columns: Hashes, uint64 [documents, 2], or keys, uint64 [documents, 1], in the order of the documents.
    """
    tables = []
    contents = []
    for number, values in enumerate(columns):
        records = _sorted_records(values)
        ends = _bucket_ends(records["key"])
        content = records.tobytes()
        table = ends.tobytes() + _checksums(content, ends, records.itemsize, number).tobytes()
        tables += [table, np.array(_checksum(table, number, NUM_BUCKETS), CHECKSUM).tobytes()]
        contents.append(content)
    return b"".join(tables + contents)


def _sorted_records(values: np.ndarray) -> np.ndarray:
    order = np.argsort(values[:, 0], kind="stable")
    dtype = KEY_RECORD
    if values.shape[1] == 2:
        dtype = HASH_RECORD
    records = np.empty(len(values), dtype)
    records["key"] = values[order, 0]
    if dtype == HASH_RECORD:
        records["rest"] = values[order, 1]
    records["row"] = order
    return records


def _bucket_ends(keys: np.ndarray) -> np.ndarray:
    """Return the number of sorted keys up to the end of each bucket, uint32 [NUM_BUCKETS]."""
    last = (np.arange(1, NUM_BUCKETS, dtype=np.uint64) << np.uint64(64 - BUCKET_BITS)) - np.uint64(1)
    ends = np.searchsorted(keys, last, side="right")
    return np.append(ends, keys.size).astype(END)


def _checksums(content: bytes, ends: np.ndarray, record_bytes: int, column: int) -> np.ndarray:
    view = memoryview(content)
    checksums = np.empty(NUM_BUCKETS, CHECKSUM)
    begin = 0
    for bucket, end in enumerate((ends.astype(np.int64) * record_bytes).tolist()):
        checksums[bucket] = _checksum(view[begin:end], column, bucket)
        begin = end
    return checksums


def _checksum(content: bytes | memoryview, column: int, bucket: int) -> int:
    """Return a checksum of a bucket, or of the table as bucket NUM_BUCKETS. Equal buckets have different checksums."""
    return xxhash.xxh3_64_intdigest(content, seed=column * (NUM_BUCKETS + 1) + bucket)


class _Table(NamedTuple):
    """Table of a column.

    Attributes:
        ends: Number of records before each bucket, and of all, int64 [NUM_BUCKETS + 1].
        checksums: Checksum of each bucket, uint64 [NUM_BUCKETS].
    """

    ends: np.ndarray
    checksums: np.ndarray


class SortedKeys:
    """Reads a file of `pack_columns`.

    Args:
        path: The file.
        record_types: Type of the records of each column.
    """

    def __init__(self, path: Path, record_types: Sequence[np.dtype]) -> None:
        self._path = path
        self._types = record_types

    def counts(self) -> np.ndarray:
        """Return the number of records in each bucket of each column, int64 [columns, NUM_BUCKETS].

        Raises:
            UserError: A table is not what was written.
        """
        counts = []
        with open_regular(self._path) as file:
            for column in range(len(self._types)):
                counts.append(np.diff(self._table(file.fileno(), column).ends))
        return np.array(counts)

    def read(self, buckets: BucketRange) -> np.ndarray:
        """Return the records in a range, sorted by their keys.

        Raises:
            UserError: The records are not what was written.
        """
        column, first, end = buckets
        record_bytes = self._types[column].itemsize
        with open_regular(self._path) as file:
            table = self._table(file.fileno(), column)
            begin = int(table.ends[first])
            num_records = int(table.ends[end]) - begin
            offset = self._column_offset(column, int(table.ends[-1])) + begin * record_bytes
            content = self._read(file.fileno(), offset, num_records * record_bytes)
        view = memoryview(content)
        offsets = ((table.ends[first : end + 1] - begin) * record_bytes).tolist()
        for number, expected in enumerate(table.checksums[first:end].tolist()):
            if _checksum(view[offsets[number] : offsets[number + 1]], column, first + number) != expected:
                raise corrupted_first_pass(self._path)
        return np.frombuffer(content, self._types[column])

    def _table(self, descriptor: int, column: int) -> _Table:
        content = self._read(descriptor, column * TABLE_BYTES, TABLE_BYTES)
        checksums = np.frombuffer(content, CHECKSUM, offset=ENDS_BYTES)
        if _checksum(content[: -CHECKSUM.itemsize], column, NUM_BUCKETS) != checksums[-1]:
            raise corrupted_first_pass(self._path)
        ends = np.frombuffer(content, END, NUM_BUCKETS).astype(np.int64)
        return _Table(np.append(0, ends), checksums[:-1])

    def _column_offset(self, column: int, num_records: int) -> int:
        """Return the offset of a column's records."""
        before = sum(record_type.itemsize for record_type in self._types[:column])
        return len(self._types) * TABLE_BYTES + before * num_records

    def _read(self, descriptor: int, offset: int, num_bytes: int) -> bytes:
        content = os.pread(descriptor, num_bytes, offset)
        if len(content) != num_bytes:
            raise corrupted_first_pass(self._path)
        return content
