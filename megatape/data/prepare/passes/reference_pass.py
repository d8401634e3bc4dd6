"""Pass over documents of other data directories, which the decision pass compares with those of a preparation.

Only the keys and shingles of these documents are stored, in the files of a first pass (cleaning/first_pass.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from megatape.data.cleaning.decisions import NEAR_DUPLICATES, Cleaning
from megatape.data.cleaning.first_pass import FirstPass
from megatape.data.cleaning.near_duplicates.near_duplicates import NearDuplicates
from megatape.data.counts import CorpusCounts
from megatape.data.prepare.passes.checksummed_files import ChecksummedFiles
from megatape.data.prepare.queue.work_queue import Step
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.folder_leases import REFERENCE
from megatape.data.prepare.shared_folder.unit_lease import UnitLease
from megatape.data.sources.reading import read_unit
from megatape.data.sources.units import Unit

# Documents whose shingles are in memory.
DOCUMENTS_AT_ONCE = 1000


@dataclass(frozen=True)
class ReferencePass:
    """Pass over the units of other data directories.

    Attributes:
        near: Rule comparing the documents.
        units: Units of the rule's folders.
        folder: Unfinished preparation.
    """

    near: NearDuplicates
    units: Sequence[Unit]
    folder: PartialFolder

    def step(self) -> Step:
        return Step(REFERENCE, len(self.units), self.folder.references, self._is_done, self._run)

    def _is_done(self, number: int) -> bool:
        return self.folder.reference(number).exists()

    def _run(self, number: int, lease: UnitLease) -> None:
        source = self.near.reference_source
        assert source is not None
        # Repeated documents stay, because their copies in this preparation are dropped anyway.
        first_pass = FirstPass(Cleaning({NEAR_DUPLICATES: self.near}, drop_duplicates=False))
        unit = self.units[number]
        with self.folder.new(self.folder.reference(number)) as folder:
            files = ChecksummedFiles(folder)
            documents = read_unit(source, unit, CorpusCounts(), first_pass.decide)
            for index, _ in enumerate(documents, start=1):
                lease.heartbeat()
                if index % DOCUMENTS_AT_ONCE == 0:
                    first_pass.save_shingles(files.append)
            first_pass.save(files.append)
            unit.check_unchanged()
