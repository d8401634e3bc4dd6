"""Decision pass: compares the documents of all units, after the first pass over each, and decides which duplicates to drop."""

from dataclasses import dataclass
from pathlib import Path

from megatape.data.cleaning.comparison import compare, near_duplicate_flags
from megatape.data.cleaning.decisions import NEAR_DUPLICATES, Cleaning
from megatape.data.cleaning.first_pass import KEYS, SHINGLE_ENDS, SHINGLES
from megatape.data.prepare.checksummed_files import check_files
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.unit_lease import UnitLease
from megatape.utils.atomic import write_atomically


@dataclass(frozen=True)
class DecisionPass:
    """Numbered comparisons of all documents, followed by one step about near duplicates. Results are stored in the folder.

    Comparing exact hashes decides at once. Comparing one band of MinHash keys only gives pairs of similar documents, so one
    more step decides which document of each pair to drop.
    """

    cleaning: Cleaning
    folder: PartialFolder
    num_units: int

    @property
    def num_comparisons(self) -> int:
        return len(self.cleaning.comparisons)

    def compared(self) -> set[int]:
        """Return the finished comparisons."""
        return {number for number in range(self.num_comparisons) if self.folder.comparison(number).exists()}

    def compare(self, number: int, lease: UnitLease) -> None:
        """Compare all documents by one of their hashes or keys."""
        comparison = self.cleaning.comparisons[number]
        near = None
        files = [KEYS]
        if comparison.rule == NEAR_DUPLICATES:
            near = self.cleaning.near_duplicates
            files = [KEYS, SHINGLES, SHINGLE_ENDS]
        folders = self._first_pass_folders()
        for folder in folders:
            lease.heartbeat()
            check_files(folder, files)
        result = compare(folders, comparison.array, near, lease.heartbeat)
        write_atomically(self.folder.comparison(number), result)

    @property
    def num_near_steps(self) -> int:
        """Number of steps after comparing all bands: 1 to decide about near duplicates, 0 without them."""
        if self.cleaning.near_duplicates is None:
            return 0
        return 1

    def decided_near(self) -> set[int]:
        """Return the finished steps of `num_near_steps`."""
        if self.folder.near_duplicates().exists():
            return {0}
        return set()

    def decide_near(self, number: int, lease: UnitLease) -> None:
        """Decide which documents are near duplicates of kept documents."""
        bands = []
        for band, comparison in enumerate(self.cleaning.comparisons):
            if comparison.rule == NEAR_DUPLICATES:
                bands.append(self.folder.comparison(band))
        flags = near_duplicate_flags(self._first_pass_folders(), bands, lease.heartbeat)
        write_atomically(self.folder.near_duplicates(), flags)

    def flag_files(self) -> list[Path]:
        """Return a file for each of `Cleaning.comparing_rules`. It flags the documents that the rule drops."""
        files = {}
        for number, comparison in enumerate(self.cleaning.comparisons):
            files[comparison.rule] = self.folder.comparison(number)
        if NEAR_DUPLICATES in files:
            files[NEAR_DUPLICATES] = self.folder.near_duplicates()
        return [files[rule] for rule in self.cleaning.comparing_rules]

    def _first_pass_folders(self) -> list[Path]:
        return [self.folder.first_pass(number) for number in range(self.num_units)]
