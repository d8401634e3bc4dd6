"""The two passes over a unit of a preparation. The decision pass lies between them."""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from megatape.data.cleaning.decisions import OnePass
from megatape.data.cleaning.first_pass import FirstPass
from megatape.data.counts import CorpusCounts
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.passes.batches import read_batches
from megatape.data.prepare.passes.decision_pass import DecisionPass
from megatape.data.prepare.passes.document_batch import DocumentBatch
from megatape.data.prepare.passes.documents import DocumentFiles
from megatape.data.prepare.passes.first_pass_unit import FirstPassUnit
from megatape.data.prepare.passes.unit_writer import UnitWriter
from megatape.data.prepare.progress import OnProgress, OnUnitProgress, Progress, UnitPass, UnitProgress
from megatape.data.prepare.shared_folder.folder import PartialFolder, unit_name
from megatape.data.prepare.shared_folder.plan import Plan
from megatape.data.prepare.shared_folder.unit_lease import UnitLease
from megatape.data.sources.document import Decide, Decision, Document
from megatape.data.tokenizers.fast import AnyTokenizer, FastTokenizer, IdsDiffer
from megatape.data.tokenizers.tokenizer import Tokenizer

LOG = logging.getLogger(__name__)


class UnitDocuments(NamedTuple):
    """Documents of a unit, while they are being read.

    Attributes:
        batches: Batches of tokenized documents.
        counts: Counts of the documents read, complete when the batches are.
    """

    batches: Iterator[DocumentBatch]
    counts: CorpusCounts


@dataclass(frozen=True)
class UnitPasses:
    """Runs passes over one unit at a time, and stores their results in the folder.

    Attributes:
        options: Options of the preparation.
        folder: Unfinished preparation.
        plan: The stored plan, with all units of the source.
        tokenizer: Tokenizer for the data.
        fast: Faster tokenizer with the same ids, or None.
        on_progress: Called repeatedly.
    """

    options: PreparationOptions
    folder: PartialFolder
    plan: Plan
    tokenizer: Tokenizer
    fast: FastTokenizer | None
    on_progress: OnUnitProgress

    def first_pass(self, number: int, lease: UnitLease) -> None:
        """Read and tokenize a unit. Store its documents, with the hashes that the decision pass compares."""
        self._run(self._first_pass, number, lease)

    def write_pass(self, number: int, lease: UnitLease) -> None:
        """Write the kept documents of a unit."""
        self._run(self._write_pass, number, lease)

    def _run(self, run: Callable[[int, UnitLease, AnyTokenizer], None], number: int, lease: UnitLease) -> None:
        """Run a pass, a second time without the fast tokenizer if that gives other ids."""
        try:
            run(number, lease, self.fast or self.tokenizer)
        except IdsDiffer as difference:
            LOG.warning(f"{difference}. Its unit is tokenized again without gigatoken")
            run(number, lease, self.tokenizer)

    def _first_pass(self, number: int, lease: UnitLease, tokenizer: AnyTokenizer) -> None:
        first_pass = FirstPass(self.options.cleaning)
        with self.folder.new(self.folder.first_pass(number)) as folder, self._documents(number, folder) as documents:
            unit = self._read(number, first_pass.decide, tokenizer, lease, documents)
            result = FirstPassUnit(folder)
            result.write(unit.batches, first_pass, unit.counts, self._progress_of(number, UnitPass.FIRST))

    def _write_pass(self, number: int, lease: UnitLease, tokenizer: AnyTokenizer) -> None:
        part = ""
        if len(self.plan.units) > 1:
            part = f"-{unit_name(number)}"
        try:
            with self.folder.new(self.folder.unit_folder(number)) as folder, self._documents(number, folder) as documents:
                if self.plan.compares_units:
                    unit = self._read_first_pass(number, documents)
                else:
                    decide = OnePass(self.options.cleaning).decide
                    unit = self._read(number, decide, tokenizer, lease, documents)
                writer = UnitWriter(folder, part, self.tokenizer)
                writer.write(unit.batches, unit.counts, self._progress_of(number, UnitPass.WRITE), documents)
            shutil.rmtree(self.folder.first_pass(number), ignore_errors=True)
        except FileNotFoundError:
            # Another process may have finished the unit and removed the result of the first pass.
            if number not in self.folder.finished(len(self.plan.units)):
                raise

    def _read(
        self, number: int, decide: Decide, tokenizer: AnyTokenizer, lease: UnitLease, documents: DocumentFiles | None
    ) -> UnitDocuments:
        """Read a unit from the source. For each document, renew the lease and write the text into `documents`, if any."""

        def record(document: Document, decision: Decision) -> None:
            lease.heartbeat()
            if documents is not None:
                documents.record(document, decision)

        counts = CorpusCounts()
        batches = read_batches(self.options, self.plan.units[number], decide, tokenizer, counts, record)
        return UnitDocuments(batches, counts)

    def _read_first_pass(self, number: int, documents: DocumentFiles | None) -> UnitDocuments:
        """Read a unit from its first pass, without the documents that the decision pass drops.

        All texts are written into `documents`, if any, before this returns.
        """
        cleaning = self.options.cleaning
        first_pass = FirstPassUnit(self.folder.first_pass(number))
        first_pass.check()
        counts = first_pass.counts()
        decisions = DecisionPass(cleaning, self.folder, len(self.plan.units), self.options.comparison_bytes)
        dropped_by = first_pass.dropped_by(decisions.dropped_rows(number))
        if documents is not None:
            documents.add_first_pass(first_pass.folder, dropped_by, cleaning.comparing_rules)
        return UnitDocuments(first_pass.kept_batches(dropped_by, cleaning.comparing_rules, counts), counts)

    def _progress_of(self, number: int, unit_pass: UnitPass) -> OnProgress:
        """Return a function reporting the progress of a pass over a unit."""

        def report(progress: Progress) -> None:
            self.on_progress(UnitProgress(number, unit_pass, progress))

        return report

    def _documents(self, number: int, folder: Path) -> AbstractContextManager[DocumentFiles | None]:
        """Return the files for a unit's texts, or a context without files if documents are not kept."""
        if not self.options.keep_documents:
            return nullcontext()
        part = unit_name(number)
        split = self.plan.units[number].split
        if split:
            part += f"-{split}"
        return closing(DocumentFiles(folder, part))
