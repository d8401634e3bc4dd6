"""Compares the documents of all units, one range of their hashes or keys at a time.

Processes share the ranges. Each reads its range of every unit, and nothing else (sorted_keys.py). Documents with equal hashes
are duplicates. Documents with equal keys are candidates, and their shingles (stored_shingles.py) say which are similar. Which
of the similar ones to drop is decided afterwards, in the order of the source (near_decision.py).
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from megatape.data.cleaning.near_duplicates.near_duplicates import Bucket, NearDuplicates
from megatape.data.cleaning.near_duplicates.stored_shingles import StoredShingles
from megatape.data.cleaning.stored.sorted_keys import NUM_BUCKETS, BucketRange, SortedKeys
from megatape.data.cleaning.stored.unit_items import PAIR, ROW, pack_items, split_by_unit
from megatape.errors import UserError, flag
from megatape.utils.text.units import format_bytes

# Number of bits of a row.
ROW_BITS = 8 * ROW.itemsize
# Memory for each compared hash or key, if all of them are equal. Without duplicates it is about half.
BYTES_PER_HASH = 80
# Number of ranges of a column even if the memory allows fewer, so that many processes can share them.
NUM_RANGES = 64
# Minimum size of these ranges.
LEAST_HASHES = 2**22


def divide_buckets(counts: np.ndarray, memory_bytes: int) -> list[BucketRange]:
    """Divide all columns into ranges that can be compared in this memory.

    Args:
        counts: Records in each bucket of each column, in all units, int64 [columns, NUM_BUCKETS].
        memory_bytes: Memory of a process.

    Raises:
        UserError: The memory is too small for a bucket.
    """
    needed_bytes = int(counts.max()) * BYTES_PER_HASH
    if needed_bytes > memory_bytes:
        num_documents = int(counts[0].sum())
        needed = format_bytes(needed_bytes)
        raise UserError(
            f"{flag('comparison_bytes')} {memory_bytes}: {num_documents:,} documents need at least {needed} in each process: "
            "give more"
        )
    ranges = []
    for column, bucket_counts in enumerate(counts):
        wanted = max(LEAST_HASHES, int(bucket_counts.sum()) // NUM_RANGES)
        most = min(wanted, memory_bytes // BYTES_PER_HASH)
        first = 0
        size = 0
        for bucket, count in enumerate(bucket_counts.tolist()):
            if bucket > first and size + count > most:
                ranges.append(BucketRange(column, first, bucket))
                first = bucket
                size = 0
            size += count
        ranges.append(BucketRange(column, first, NUM_BUCKETS))
    return ranges


class _Group(NamedTuple):
    """Documents with the same hash or key, in the order of the source."""

    units: np.ndarray
    rows: np.ndarray


class _Matches:
    """Documents that share their hash or key with another one, grouped.

    Attributes:
        units: Unit of each document.
        rows: Row of each document in its unit.
        is_later: Whether the document before has the same hash or key, bool.
    """

    def __init__(self, units: Sequence[SortedKeys], buckets: BucketRange, heartbeat: Callable[[], None]) -> None:
        parts = []
        for unit in units:
            heartbeat()
            parts.append(unit.read(buckets))
        ends = np.cumsum([part.size for part in parts])
        keys = np.concatenate([part["key"] for part in parts])
        rows = np.concatenate([part["row"] for part in parts])
        rest = None
        if "rest" in (parts[0].dtype.names or ()):
            rest = np.concatenate([part["rest"] for part in parts])
        del parts
        # Every unit is sorted, so this merges them. It is stable: equal keys stay in the order of the source.
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        equals_previous = keys[1:] == keys[:-1]
        is_match = np.zeros(keys.size, bool)
        is_match[1:] |= equals_previous
        is_match[:-1] |= equals_previous
        matches = order[is_match]
        keys = keys[is_match]
        del order, equals_previous, is_match

        self.units = np.searchsorted(ends, matches, side="right")
        self.rows = rows[matches]
        self.is_later = _equals_previous(keys)
        if rest is not None:
            self._split_by_rest(keys, rest[matches])

    def _split_by_rest(self, keys: np.ndarray, rest: np.ndarray) -> None:
        """Compare the second halves of the hashes as well."""
        equals_previous = _equals_previous(rest)
        if not equals_previous[self.is_later].all():
            # Different hashes agree in the first half.
            order = np.lexsort((rest, keys))
            self.units = self.units[order]
            self.rows = self.rows[order]
            self.is_later = _equals_previous(keys[order])
            equals_previous = _equals_previous(rest[order])
        self.is_later = self.is_later & equals_previous

    def groups(self) -> Iterator[_Group]:
        """Yield the documents of each hash or key that several documents have."""
        # Empty if no documents match.
        bounds = np.append(np.flatnonzero(~self.is_later), self.rows.size).tolist()
        for begin, end in pairwise(bounds):
            if end > begin + 1:
                yield _Group(self.units[begin:end], self.rows[begin:end])


def _equals_previous(values: np.ndarray) -> np.ndarray:
    equal = np.zeros(values.size, bool)
    equal[1:] = values[1:] == values[:-1]
    return equal


def find_duplicates(units: Sequence[SortedKeys], buckets: BucketRange, heartbeat: Callable[[], None]) -> bytes:
    """Find the documents in a range of hashes that equal an earlier one.

    Args:
        units: Sorted hashes of each unit, in order.
        buckets: The range.
        heartbeat: Called for each unit, to renew the lease.

    Returns:
        Content of a file of UnitItems: the rows of the duplicates.
    """
    matches = _Matches(units, buckets, heartbeat)
    # Unit and row as one number, which sorts fast.
    duplicates = matches.units[matches.is_later] << ROW_BITS | matches.rows[matches.is_later]
    duplicates.sort()
    return pack_items(split_by_unit(duplicates >> ROW_BITS, duplicates.astype(ROW), len(units)))


def find_similar(
    units: Sequence[SortedKeys],
    buckets: BucketRange,
    near: NearDuplicates,
    shingles: StoredShingles,
    heartbeat: Callable[[], None],
) -> bytes:
    """Find pairs of similar documents in a range of keys. Candidates are chosen in the order of the source.

    Args:
        units: Sorted keys of each unit, in order.
        buckets: The range.
        near: Rule deciding whether documents with equal keys are similar.
        shingles: Shingles of all documents.
        heartbeat: Called for each unit and document, to renew the lease.

    Returns:
        Content of a file of UnitItems: a PAIR for each document and similar earlier one.
    """
    pair_units = array("Q")
    pair_rows = array("Q")
    earlier_numbers = array("Q")
    for group in _Matches(units, buckets, heartbeat).groups():
        bucket: Bucket = []
        for unit, row in zip(group.units.tolist(), group.rows.tolist(), strict=True):
            heartbeat()
            number = shingles.number(unit, row)
            for earlier in near.matches_bucket(number, shingles.of(unit, row), bucket):
                pair_units.append(unit)
                pair_rows.append(row)
                earlier_numbers.append(earlier)
    order = np.lexsort((earlier_numbers, pair_rows, pair_units))
    pairs = np.empty(order.size, PAIR)
    pairs["row"] = np.asarray(pair_rows)[order]
    pairs["earlier"] = np.asarray(earlier_numbers)[order]
    return pack_items(split_by_unit(np.asarray(pair_units)[order], pairs, len(units)))
