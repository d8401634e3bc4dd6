"""Decision pass: compares the documents of all units, after the first pass over each, and decides which duplicates to drop.

All processes share its steps:

1. Division. One process counts the documents, and divides their hashes and keys into ranges that fit into memory.
2. Comparison. Each range gives duplicates, or pairs of similar documents.
3. Near decision. One process goes through the pairs in the order of the source, and drops documents similar to a kept one.
4. Collection. For each group of units, the duplicates of all ranges are written to one file, which is all that the write pass
   over a unit reads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from megatape.data.cleaning.comparison import divide_buckets, find_duplicates, find_similar
from megatape.data.cleaning.decisions import DUPLICATES, NEAR_DUPLICATES, Cleaning
from megatape.data.cleaning.first_pass import KEYS
from megatape.data.cleaning.near_duplicates.near_decision import NearDecision
from megatape.data.cleaning.near_duplicates.stored_shingles import StoredShingles
from megatape.data.cleaning.stored.arrays import CORRUPTED_ARRAYS, pack_arrays
from megatape.data.cleaning.stored.sorted_keys import HASH_RECORD, KEY_RECORD, NUM_BUCKETS, BucketRange, SortedKeys
from megatape.data.cleaning.stored.unit_items import PAIR, ROW, UnitItems, pack_items
from megatape.data.prepare.queue.work_queue import Step
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.folder_leases import COLLECTION, COMPARISON, DIVISION, NEAR_DECISION
from megatape.data.prepare.shared_folder.unit_lease import UnitLease
from megatape.errors import UserError
from megatape.utils.files.atomic import write_atomically
from megatape.utils.values.rounding import divide_up

DIVISION_FILE = "ranges.npz"
# Units whose decisions are in one file. Collecting them takes a few bytes for each of their duplicates.
GROUP_UNITS = 1024


class Ranges(NamedTuple):
    """Result of the division.

    Attributes:
        num_documents: Documents in each reference and in each unit, int64 [references + units].
        ranges: Ranges to compare.
    """

    num_documents: np.ndarray
    ranges: list[BucketRange]


@dataclass(frozen=True)
class DecisionPass:
    """The decision pass over the units of a preparation. Results are stored in the folder.

    Attributes:
        cleaning: Rules of the preparation.
        folder: Unfinished preparation.
        num_units: Number of units.
        memory_bytes: Memory of a comparison. The process that divides the hashes decides for all.
        num_references: Number of units of other data directories. Their documents precede those of the preparation, and stay.
        group_units: Units whose decisions are in one file.
    """

    cleaning: Cleaning
    folder: PartialFolder
    num_units: int
    memory_bytes: int
    num_references: int = 0
    group_units: int = GROUP_UNITS

    def division(self) -> Step:
        """Return the first step. The steps after it depend on its result."""
        return self._step(DIVISION, [[DIVISION_FILE]], self._divide)

    def later_steps(self) -> list[Step]:
        """Return the steps after the division, in order."""
        rules = self.cleaning.comparing_rules
        range_files = [[_range_file(number)] for number in range(len(self._ranges.ranges))]
        steps = [self._step(COMPARISON, range_files, self._compare)]
        if NEAR_DUPLICATES in rules:
            steps.append(self._step(NEAR_DECISION, [self._group_files(NEAR_DUPLICATES)], self._decide_near))
        if DUPLICATES in rules:
            group_files = [[file] for file in self._group_files(DUPLICATES)]
            steps.append(self._step(COLLECTION, group_files, self._collect))
        return steps

    def dropped_rows(self, number: int) -> list[np.ndarray]:
        """Return the rows of a unit that each of `Cleaning.comparing_rules` drops.

        Raises:
            UserError: A file is corrupted.
        """
        group, unit = divmod(number, self.group_units)
        rows = []
        for rule in self.cleaning.comparing_rules:
            rows += self._group_items(rule, group).read(unit, unit + 1)
        return rows

    def _divide(self, number: int, lease: UnitLease) -> None:
        counts = np.zeros((len(self.cleaning.compared_columns), NUM_BUCKETS), np.int64)
        num_documents = []
        for keys in self._reference_keys() + self._unit_keys():
            lease.heartbeat()
            unit_counts = keys.counts()
            # References have fewer columns: no hashes, which come last.
            counts[: len(unit_counts)] += unit_counts
            num_documents.append(unit_counts[0].sum())
        ranges = divide_buckets(counts, self.memory_bytes)
        arrays = {"num_documents": np.array(num_documents), "ranges": np.array(ranges)}
        write_atomically(self.folder.comparison(DIVISION_FILE), pack_arrays(arrays))

    @cached_property
    def _ranges(self) -> Ranges:
        path = self.folder.comparison(DIVISION_FILE)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                ranges = [BucketRange(*row) for row in arrays["ranges"].tolist()]
                return Ranges(arrays["num_documents"], ranges)
        except CORRUPTED_ARRAYS as error:
            raise UserError(
                f"{path}: corrupted ({error!r}): remove it, and the same command compares the documents again"
            ) from error

    def _compare(self, number: int, lease: UnitLease) -> None:
        """Compare all documents in one range."""
        num_documents, ranges = self._ranges
        buckets = ranges[number]
        if self._rule_of(buckets) == NEAR_DUPLICATES:
            near = self.cleaning.near_duplicates
            assert near is not None
            shingles = StoredShingles(self._reference_folders() + self._first_pass_folders(), num_documents)
            all_keys = self._reference_keys() + self._unit_keys()
            result = find_similar(all_keys, buckets, near, shingles, lease.heartbeat)
        else:
            result = find_duplicates(self._unit_keys(), buckets, lease.heartbeat)
        write_atomically(self.folder.comparison(_range_file(number)), result)

    def _decide_near(self, number: int, lease: UnitLease) -> None:
        """Decide which documents are near duplicates of kept documents, one group of units after another."""
        pairs = self._range_items(NEAR_DUPLICATES, PAIR)
        decision = NearDecision(pairs, self._ranges.num_documents, self.memory_bytes)
        for group, file in enumerate(self._group_files(NEAR_DUPLICATES)):
            lease.heartbeat()
            units = self._units_of(group)
            path = self.folder.comparison(file)
            # References are never decided about, so that they count as kept.
            first = self.num_references + units.start
            if path.exists():
                decision.restore(first, self._group_items(NEAR_DUPLICATES, group).read(0, len(units)))
                continue
            rows = decision.decide(first, first + len(units), lease.heartbeat)
            write_atomically(path, pack_items(rows))

    def _collect(self, group: int, lease: UnitLease) -> None:
        """Write the duplicates of a group of units, found in any range."""
        units = self._units_of(group)
        rows: list[list[np.ndarray]] = [[] for _ in units]
        for items in self._range_items(DUPLICATES, ROW):
            lease.heartbeat()
            for unit_rows, found in zip(rows, items.read(units.start, units.stop), strict=True):
                unit_rows.append(found)
        sorted_rows = [np.sort(np.concatenate(unit_rows)) for unit_rows in rows]
        write_atomically(self.folder.comparison(self._group_files(DUPLICATES)[group]), pack_items(sorted_rows))

    def _step(self, lease_suffix: str, files: Sequence[Sequence[str]], work: Callable[[int, UnitLease], None]) -> Step:
        """Return a step, given the files that each of its parts writes."""

        def done() -> set[int]:
            existing = self.folder.comparisons()
            return {number for number, part_files in enumerate(files) if existing.issuperset(part_files)}

        def is_done(number: int) -> bool:
            return all(self.folder.comparison(file).exists() for file in files[number])

        return Step(lease_suffix, len(files), done, is_done, work)

    def _reference_keys(self) -> list[SortedKeys]:
        num_columns = self.cleaning.compared_columns.count(NEAR_DUPLICATES)
        return [SortedKeys(folder / KEYS, [KEY_RECORD] * num_columns) for folder in self._reference_folders()]

    def _unit_keys(self) -> list[SortedKeys]:
        record_types = []
        for rule in self.cleaning.compared_columns:
            record_type = KEY_RECORD
            if rule == DUPLICATES:
                record_type = HASH_RECORD
            record_types.append(record_type)
        return [SortedKeys(folder / KEYS, record_types) for folder in self._first_pass_folders()]

    def _rule_of(self, buckets: BucketRange) -> str:
        return self.cleaning.compared_columns[buckets.column]

    def _range_items(self, rule: str, item_type: np.dtype) -> list[UnitItems]:
        """Return the results of all ranges that a rule compares."""
        num_units = self.num_units
        if rule == NEAR_DUPLICATES:
            num_units += self.num_references
        items = []
        for number, buckets in enumerate(self._ranges.ranges):
            if self._rule_of(buckets) == rule:
                items.append(UnitItems(self.folder.comparison(_range_file(number)), item_type, num_units))
        return items

    def _group_items(self, rule: str, group: int) -> UnitItems:
        path = self.folder.comparison(self._group_files(rule)[group])
        return UnitItems(path, ROW, len(self._units_of(group)))

    def _group_files(self, rule: str) -> list[str]:
        """Return the names of the files with the documents that a rule drops, one for each group of units."""
        num_groups = divide_up(self.num_units, self.group_units)
        return [f"{rule}-{group:05d}.bin" for group in range(num_groups)]

    def _units_of(self, group: int) -> range:
        first = group * self.group_units
        return range(first, min(first + self.group_units, self.num_units))

    def _reference_folders(self) -> list[Path]:
        return [self.folder.reference(number) for number in range(self.num_references)]

    def _first_pass_folders(self) -> list[Path]:
        return [self.folder.first_pass(number) for number in range(self.num_units)]


def _range_file(number: int) -> str:
    return f"range-{number:05d}.bin"
