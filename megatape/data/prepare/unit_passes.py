"""Passes over the units of a preparation."""

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from megatape.data.cleaning.decisions import OnePass
from megatape.data.cleaning.first_pass import FirstPass
from megatape.data.counts import CorpusCounts
from megatape.data.prepare.batches import read_batches
from megatape.data.prepare.document_batch import DocumentBatch
from megatape.data.prepare.documents import DocumentFiles
from megatape.data.prepare.first_pass_unit import FirstPassUnit
from megatape.data.prepare.folder import PartialFolder, unit_name
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.progress import OnProgress, OnUnitProgress, Progress, UnitPass, UnitProgress
from megatape.data.prepare.unit_comparisons import UnitComparisons
from megatape.data.prepare.unit_lease import UnitLease
from megatape.data.prepare.unit_writer import UnitWriter
from megatape.data.sources.document import Decision, Document, Record
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.fast import FastTokenizer, IdsDiffer
from megatape.data.tokenizers.tokenizer import Tokenizer

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class UnitPasses:
    """The passes over one unit, by its number. Each result is stored in the folder.

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
            _warn(difference)
            self._decide(number, lease, self.tokenizer)

    def write(self, number: int, lease: UnitLease) -> None:
        """Write the kept documents of a unit."""
        try:
            self._write(number, lease, self.fast or self.tokenizer)
        except IdsDiffer as difference:
            _warn(difference)
            self._write(number, lease, self.tokenizer)

    def _decide(self, number: int, lease: UnitLease, tokenizer: Tokenizer | FastTokenizer) -> None:
        counts = CorpusCounts()
        first_pass = FirstPass(self.options.cleaning)
        with self.folder.new(self.folder.first_pass(number)) as folder, self._documents(number, folder) as documents:
            batches = read_batches(
                self.options, self.units[number], first_pass.decide, tokenizer, counts, _recorder(lease, documents)
            )
            unit = FirstPassUnit(folder, self.tokenizer.vocab_size)
            unit.write(batches, first_pass, counts, self._progress_of(number, UnitPass.DECIDE))

    def _write(self, number: int, lease: UnitLease, tokenizer: Tokenizer | FastTokenizer) -> None:
        part = ""
        if len(self.units) > 1:
            part = f"-{unit_name(number)}"
        first_pass = FirstPassUnit(self.folder.first_pass(number), self.tokenizer.vocab_size)
        try:
            with self.folder.new(self.folder.unit_folder(number)) as folder, self._documents(number, folder) as documents:
                if self.options.cleaning.compares_units(len(self.units)):
                    first_pass.check()
                    counts = first_pass.counts()
                    batches = self._kept(number, first_pass, counts, documents)
                else:
                    counts = CorpusCounts()
                    decide = OnePass(self.options.cleaning).decide
                    batches = read_batches(
                        self.options, self.units[number], decide, tokenizer, counts, _recorder(lease, documents)
                    )
                writer = UnitWriter(folder, part, self.tokenizer)
                writer.write(batches, counts, self._progress_of(number, UnitPass.WRITE), documents)
            shutil.rmtree(first_pass.folder, ignore_errors=True)
        except FileNotFoundError:
            # Another process may have finished the unit and removed the result of the first pass.
            if number not in self.folder.finished(len(self.units)):
                raise

    def _kept(
        self, number: int, first_pass: FirstPassUnit, counts: CorpusCounts, documents: DocumentFiles | None
    ) -> Iterator[DocumentBatch]:
        """Return the documents of a unit that no comparison dropped.

        Args:
            number: Number of the unit.
            first_pass: Result of its first pass.
            counts: Counts to update.
            documents: Files for the texts of its documents, which are written at once. None if documents are not kept.
        """
        cleaning = self.options.cleaning
        comparisons = UnitComparisons(cleaning, self.folder, len(self.units))
        dropped_by = first_pass.dropped_by(comparisons.drop_files(), number)
        if documents is not None:
            documents.add_first_pass(first_pass.folder, dropped_by, cleaning.comparing_rules)
        return first_pass.kept(dropped_by, cleaning.comparing_rules, counts)

    def _progress_of(self, number: int, unit_pass: UnitPass) -> OnProgress:
        """Return a function that reports the progress of a pass over a unit."""

        def report(progress: Progress) -> None:
            self.on_progress(UnitProgress(number, unit_pass, progress))

        return report

    def _documents(self, number: int, folder: Path) -> AbstractContextManager[DocumentFiles | None]:
        """Return the files for the documents of a unit in its folder, if documents are kept."""
        if not self.options.keep_documents:
            return nullcontext()
        part = unit_name(number)
        split = self.units[number].split
        if split:
            part += f"-{split}"
        return closing(DocumentFiles(folder, part))


def _recorder(lease: UnitLease, documents: DocumentFiles | None) -> Record:
    """Return a function that renews the lease for each document, and writes the document if documents are kept."""

    def record(document: Document, decision: Decision) -> None:
        lease.heartbeat()
        if documents is not None:
            documents.record(document, decision)

    return record


def _warn(difference: IdsDiffer) -> None:
    LOG.warning(f"{difference}. Its unit is tokenized again without gigatoken")
