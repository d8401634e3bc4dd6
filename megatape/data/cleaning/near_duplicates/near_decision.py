"""Decides about near duplicates, given all pairs of similar documents."""

from collections.abc import Callable, Sequence

import numpy as np

from megatape.data.cleaning.stored.unit_items import ROW, UnitItems

# Memory for each pair while deciding about near duplicates.
BYTES_PER_PAIR = 64
# Pairs converted to Python's integers at a time.
PAIRS_AT_ONCE = 2**16


class NearDecision:
    """Decides in the order of the source which documents to drop: those similar to a kept document.

    Memory: a bit per document, and BYTES_PER_PAIR for each pair of some units.

    Args:
        pairs: Results of `find_similar` for all ranges.
        num_documents: Number of documents in each unit.
        memory_bytes: Memory for pairs.
    """

    def __init__(self, pairs: Sequence[UnitItems], num_documents: np.ndarray, memory_bytes: int) -> None:
        self._pairs = pairs
        self._starts = np.append(0, np.cumsum(num_documents))
        self._max_pairs = memory_bytes // BYTES_PER_PAIR
        self._is_dropped = bytearray(int(self._starts[-1]) // 8 + 1)

    def restore(self, first: int, rows: Sequence[np.ndarray]) -> None:
        """Take over the result of `decide` for some units from `first` on."""
        for start, unit_rows in zip(self._starts[first:].tolist(), rows, strict=False):
            for number in (start + unit_rows.astype(np.int64)).tolist():
                self._is_dropped[number >> 3] |= 1 << (number & 7)

    def decide(self, first: int, end: int, heartbeat: Callable[[], None]) -> list[np.ndarray]:
        """Decide about the documents of some units, after those of all earlier units.

        Args:
            first: First unit.
            end: End of the units.
            heartbeat: Called repeatedly, to renew the lease.

        Returns:
            The rows to drop in each unit, ascending.
        """
        num_pairs = 0
        for file in self._pairs:
            heartbeat()
            num_pairs += int(file.counts(first, end).sum())
        if num_pairs > self._max_pairs and end > first + 1:
            middle = (first + end) // 2
            return self.decide(first, middle, heartbeat) + self.decide(middle, end, heartbeat)

        numbers = [np.empty(0, np.int64)]
        earlier = [np.empty(0, np.int64)]
        for file in self._pairs:
            for start, pairs in zip(self._starts[first:end].tolist(), file.read(first, end), strict=True):
                heartbeat()
                numbers.append(pairs["row"].astype(np.int64) + start)
                earlier.append(pairs["earlier"].astype(np.int64))
        dropped = self._decide(np.concatenate(numbers), np.concatenate(earlier), heartbeat)
        bounds = np.searchsorted(dropped, self._starts[first : end + 1]).tolist()
        rows = []
        for unit in range(first, end):
            in_unit = dropped[bounds[unit - first] : bounds[unit - first + 1]]
            rows.append((in_unit - self._starts[unit]).astype(ROW))
        return rows

    def _decide(self, numbers: np.ndarray, earlier: np.ndarray, heartbeat: Callable[[], None]) -> np.ndarray:
        """Return the documents to drop, given pairs of a document and an earlier one."""
        # Sorted by the later document of each pair, so that the decision about the earlier one is final.
        order = np.argsort(numbers, kind="stable")
        is_dropped = self._is_dropped
        dropped: list[np.ndarray] = [np.empty(0, np.int64)]
        for begin in range(0, order.size, PAIRS_AT_ONCE):
            heartbeat()
            part = order[begin : begin + PAIRS_AT_ONCE]
            newly_dropped = []
            for number, earlier_number in zip(numbers[part].tolist(), earlier[part].tolist(), strict=True):
                is_kept = not is_dropped[earlier_number >> 3] >> (earlier_number & 7) & 1
                if is_kept and not is_dropped[number >> 3] >> (number & 7) & 1:
                    is_dropped[number >> 3] |= 1 << (number & 7)
                    newly_dropped.append(number)
            dropped.append(np.array(newly_dropped, np.int64))
        return np.concatenate(dropped)
