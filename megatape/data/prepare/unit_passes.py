"""Passes over the units of a preparation, and the comparison of all documents between them."""

import logging
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from megatape.data.cleaning.comparison import compare, near_drops
from megatape.data.cleaning.decisions import NEAR_DUPLICATES, OnePass
from megatape.data.cleaning.first_pass import KEYS, SHINGLE_ENDS, SHINGLES, FirstPass
from megatape.data.counts import CorpusCounts
from megatape.data.prepare.batches import read_batches
from megatape.data.prepare.checksummed_files import check_files
from megatape.data.prepare.documents import DocumentFiles
from megatape.data.prepare.first_pass_unit import FirstPassUnit
from megatape.data.prepare.folder import PartialFolder, unit_name
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.progress import DECIDE_PASS, WRITE_PASS, OnUnitProgress
from megatape.data.prepare.unit_lease import UnitLease
from megatape.data.prepare.unit_writer import UnitWriter
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.fast import FastTokenizer, IdsDiffer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.utils.atomic import write_atomically

LOG = logging.getLogger(__name__)


def compares_units(options: PreparationOptions, units: Sequence[Unit]) -> bool:
    """Whether documents are compared with those of other units. Then each unit takes two passes."""
    return options.cleaning.compares and len(units) > 1


@dataclass(frozen=True)
class UnitPasses:
    """The work on one unit, or on one comparison, by its number. Each result is stored in the folder.

    Attributes:
        options: Options of the preparation.
        folder: Folder of the unfinished preparation.
        units: All parts of the source.
        tokenizer: Tokenizer of the data.
        fast: Faster tokenizer with the same ids, or None.
        on_progress: Called repeatedly.
    """

    options: PreparationOptions
    folder: PartialFolder
    units: Sequence[Unit]
    tokenizer: Tokenizer
    fast: FastTokenizer | None
    on_progress: OnUnitProgress

    def decide(self, number: int, lease: UnitLease) -> None:
        """Read and tokenize a unit, and store its documents with the hashes that decide about duplicates in other units."""
        try:
            self._decide(number, lease, self.fast or self.tokenizer)
        except IdsDiffer as difference:
            self._warn(difference)
            self._decide(number, lease, self.tokenizer)

    def compared(self) -> set[int]:
        """Return the numbers of the finished comparisons."""
        numbers = range(len(self.options.cleaning.comparisons))
        return {number for number in numbers if self.folder.comparison(number).exists()}

    def compare(self, number: int, lease: UnitLease) -> None:
        """Compare the documents of all units by one of their hashes or keys."""
        array, rule = self.options.cleaning.comparisons[number]
        near = None
        files = [KEYS]
        if rule == NEAR_DUPLICATES:
            near = self.options.cleaning.near_duplicates
            files = [KEYS, SHINGLES, SHINGLE_ENDS]
        folders = self._first_pass_folders()
        for folder in folders:
            lease.heartbeat()
            check_files(folder, files)
        write_atomically(self.folder.comparison(number), compare(folders, array, near, lease.heartbeat))

    @property
    def num_near_steps(self) -> int:
        """Number of steps after comparing all bands: 1 to decide about near duplicates, 0 without them."""
        if self.options.cleaning.near_duplicates is None:
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
        for comparison, (_, rule) in enumerate(self.options.cleaning.comparisons):
            if rule == NEAR_DUPLICATES:
                bands.append(self.folder.comparison(comparison))
        write_atomically(self.folder.near_duplicates(), near_drops(self._first_pass_folders(), bands, lease.heartbeat))

    def write(self, number: int, lease: UnitLease) -> None:
        """Write the kept documents of a unit."""
        try:
            self._write(number, lease, self.fast or self.tokenizer)
        except IdsDiffer as difference:
            self._warn(difference)
            self._write(number, lease, self.tokenizer)

    def _decide(self, number: int, lease: UnitLease, tokenizer: Tokenizer | FastTokenizer) -> None:
        counts = CorpusCounts()
        first_pass = FirstPass(self.options.cleaning)
        on_progress = partial(self.on_progress, number, DECIDE_PASS)
        with self.folder.new(self.folder.first_pass(number)) as folder, self._documents(number, folder) as documents:
            record = None
            if documents:
                record = documents.record
            batches = read_batches(
                self.options, self.units[number], first_pass.decide, tokenizer, counts, lease.heartbeat, record
            )
            FirstPassUnit(folder, self.tokenizer.vocab_size).write(batches, first_pass, counts, on_progress)

    def _write(self, number: int, lease: UnitLease, tokenizer: Tokenizer | FastTokenizer) -> None:
        part = ""
        if len(self.units) > 1:
            part = f"-{unit_name(number)}"
        first_pass = FirstPassUnit(self.folder.first_pass(number), self.tokenizer.vocab_size)
        on_progress = partial(self.on_progress, number, WRITE_PASS)
        try:
            with self.folder.new(self.folder.unit_folder(number)) as folder, self._documents(number, folder) as documents:
                if compares_units(self.options, self.units):
                    first_pass.check()
                    counts = first_pass.counts()
                    rules = self.options.cleaning.comparing_rules
                    dropped_by = first_pass.dropped_by(self._drop_files(), number)
                    batches = first_pass.kept(dropped_by, rules, counts)
                    if documents:
                        documents.add_first_pass(first_pass.folder, dropped_by, rules)
                else:
                    counts = CorpusCounts()
                    decide = OnePass(self.options.cleaning).decide
                    record = None
                    if documents:
                        record = documents.record
                    batches = read_batches(self.options, self.units[number], decide, tokenizer, counts, lease.heartbeat, record)
                UnitWriter(folder, part, self.tokenizer).write(batches, counts, on_progress, documents)
            shutil.rmtree(first_pass.folder, ignore_errors=True)
        except FileNotFoundError:
            # Another process may have finished the unit and removed the result of the first pass.
            if number not in self.folder.finished(len(self.units)):
                raise

    def _documents(self, number: int, folder: Path) -> AbstractContextManager[DocumentFiles | None]:
        """Return the files for the documents of a unit in its folder, if documents are kept."""
        if not self.options.keep_documents:
            return nullcontext()
        part = unit_name(number)
        split = self.units[number].split
        if split:
            part += f"-{split}"
        return closing(DocumentFiles(folder, part))

    def _first_pass_folders(self) -> list[Path]:
        return [self.folder.first_pass(number) for number in range(len(self.units))]

    def _drop_files(self) -> list[Path]:
        """Return a file with the dropped documents for each of `Cleaning.comparing_rules`."""
        cleaning = self.options.cleaning
        files = {}
        for number, (_, rule) in enumerate(cleaning.comparisons):
            files[rule] = self.folder.comparison(number)
        if NEAR_DUPLICATES in files:
            files[NEAR_DUPLICATES] = self.folder.near_duplicates()
        return [files[rule] for rule in cleaning.comparing_rules]

    def _warn(self, difference: IdsDiffer) -> None:
        LOG.warning(f"{difference}. Its unit is tokenized again without gigatoken")
