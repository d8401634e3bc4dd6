"""The folder of an unfinished preparation, OUTPUT.partial: safe to share and to kill.

    plan.json              the plan: sources, units, tokenizer, rules
    tokenizer/             the tokenizer's files
    verdicts/00003/        the draft of a unit: its documents, tokenized, until they are compared with those of others
    verdicts/compared-*    the results of each comparison, and all near duplicates
    units/00003/           a finished unit: its shards, tables of documents, summary and how often each token occurs, and its
                           documents if they are kept, as in the draft
    00003.claim            lease of the process that works on it
    final/                 the result, while it is assembled

A unit is written under another name and renamed when its files are on disk, so it exists completely or not at all, and the plan
decides every byte of it. Two processes that work on the same unit only waste time: the second rename fails.
"""

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from megatape.data.counts import CorpusCounts, DocumentCounts
from megatape.data.document_entries import INDEX_FILE
from megatape.data.prepare.corpus import Plan
from megatape.data.prepare.documents import describe_documents
from megatape.data.prepare.unit import Summary, UnitTotals
from megatape.data.prepare.unit_lease import UnitLease
from megatape.data.printable import printable
from megatape.data.shards.entries import Index, check_filled
from megatape.data.shards.index import MAX_INDEX_BYTES, build_index, load_index
from megatape.data.sources.kept_documents import SUFFIX
from megatape.data.sources.reading import check_bad, check_found
from megatape.data.sources.source import Source
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import ExistingPath, UserError, content_errors
from megatape.reliability.heartbeat_monitor import HeartbeatMonitor
from megatape.reliability.holder import read_holder
from megatape.reliability.lease import LeaseTimeouts
from megatape.utils.files import (
    PARTIAL,
    as_type,
    check_absent,
    json_content,
    read_json,
    rename,
    sync,
    temporary_name,
    write_atomically,
)

PLAN = "plan.json"
CLAIM = ".claim"  # end of names


class PartialFolder:
    """The folder of the preparation of `output`.

    Args:
        output: Folder of the result.
        timeouts: Timeouts of leases.
    """

    def __init__(self, output: Path, timeouts: LeaseTimeouts) -> None:
        self.output = output
        self.path = output.with_name(f"{output.name}{PARTIAL}")
        self.timeouts = timeouts
        self._units, self._final, self._decisions, self._tokenizer = (
            self.path / name for name in ("units", "final", "verdicts", "tokenizer")
        )
        self._monitors: defaultdict[str, HeartbeatMonitor] = defaultdict(HeartbeatMonitor)  # of leases by name

    def create(self) -> bool:
        """Create the folder.

        Returns:
            False if it already exists.

        Raises:
            ExistingPath: It is not the folder of a preparation, or has a link that would redirect writes.
        """
        created = not self._units.is_dir()
        ours = {PLAN, *(part.name for part in (self._units, self._final, self._decisions, self._tokenizer))}
        for path in self.path.glob("*") if created else ():
            if path.name not in ours and path.suffix not in (CLAIM, ".tmp"):
                raise ExistingPath(
                    f"{self.path} has {path.name}, so it is no unfinished preparation: rename it, or choose another output"
                )
        for folder in (self._units, self._final, self._decisions, self._tokenizer):
            if folder.is_symlink():
                raise ExistingPath(f"{folder} is a link, through which nothing is written: remove it, or choose another output")
        self._units.mkdir(parents=True, exist_ok=True)
        self._decisions.mkdir(exist_ok=True)
        return created

    @contextmanager
    def lease(self, name: str) -> Iterator[UnitLease | None]:
        """Hold the lease of a unit, by its `unit_name`, or of another step; None if another process has it."""
        lease = UnitLease(self.lease_path(name), self.timeouts, self._monitors[name])
        if not lease.acquire():
            yield None
            return
        try:
            yield lease
        finally:
            lease.release()

    def holder(self, name: str) -> str:
        """The holder of a lease, for messages."""
        path = self.lease_path(name)
        with suppress(OSError):
            return f"{path}, which {read_holder(path.read_bytes()) or 'an unknown process'} holds"
        return str(path)

    def leases(self) -> set[str]:
        """Names of the leases that any process has, by one listing."""
        return {path.name.removesuffix(CLAIM) for path in self.path.glob(f"*{CLAIM}")}

    def release(self, pid: int) -> list[int]:
        """Release the leases of a process of this machine that has ended. Returns the numbers of their units."""
        released = []
        for name in self.leases():
            with suppress(OSError):  # released meanwhile
                holder = read_holder(self.lease_path(name).read_bytes())
                if holder and holder.pid == pid and holder.is_dead():
                    self.lease_path(name).unlink()
                    released += [int(number)] if (number := name.partition(".")[0]).isdigit() else []
        return released

    def lease_path(self, name: str) -> Path:
        """Return the path of a lease's file, by the name of the lease."""
        return self.path / f"{name}{CLAIM}"

    def begin(self, plan: Plan, tokenizer: Tokenizer) -> None:
        """Store plan and tokenizer."""
        self._tokenizer.mkdir(exist_ok=True)
        for file, content in tokenizer.files.items():
            write_atomically(self._tokenizer / file, content)
        write_atomically(self.path / PLAN, json_content(asdict(plan), PLAN, indent=1, max_bytes=MAX_INDEX_BYTES))

    def plan(self) -> Plan | None:
        """The plan, if one is stored. Raises UserError if it cannot be read."""
        path = self.path / PLAN
        if not path.exists():
            return None
        with content_errors(f"{path}: corrupted", f"remove {self.path}, which loses what it holds"):
            return as_type(read_json(path, max_bytes=MAX_INDEX_BYTES), Plan)

    def tokenizer(self, plan: Plan) -> Tokenizer:
        """The stored tokenizer. Raises FileNotFoundError or UserError if its files have changed."""
        return stored_tokenizer(self._tokenizer, plan.tokenizer.files)

    def draft(self, number: int) -> Path:
        """Folder of a unit's draft."""
        return self._decisions / unit_name(number)

    def compared(self, number: int) -> Path:
        """File with the result of one comparison of all units."""
        return self._decisions / f"compared-{number:03d}.npz"

    def near_drops(self) -> Path:
        """Return the file with the near duplicates of all units."""
        return self._decisions / "compared-near.npz"

    def unit_folder(self, number: int) -> Path:
        """Folder of a finished unit."""
        return self._units / unit_name(number)

    def finished(self, num_units: int) -> set[int]:
        """The finished ones of the units, by one listing; all of them if they are in the result already."""
        found = _numbers(self._units)
        return found if len(found) == num_units or not self._is_final() else set(range(num_units))

    def discard(self, numbers: Iterable[int]) -> None:
        """Remove all results of these units and all comparisons, so that the units are prepared again.

        Args:
            numbers: Numbers of the units.

        Raises:
            UserError: The result is already complete, except for its name.
        """
        if self._is_final():
            raise UserError(f"{self._final} is complete: give the same command without `redo`, which renames it")
        for path in self._decisions.glob("compared-*"):
            path.unlink(missing_ok=True)
        for number in numbers:
            unit = self.unit_folder(number)
            with suppress(OSError, UserError):  # The unit is unfinished or has no summary.
                totals = UnitTotals()
                totals.add(*Summary.load(unit))
                documents = [entry.file for entry in totals.document_files]
                for file in [*(name for _, name in totals.files), *documents]:  # Moved by an interrupted `finish`.
                    (self._final / file).unlink(missing_ok=True)
            shutil.rmtree(unit, ignore_errors=True)
            shutil.rmtree(self.draft(number), ignore_errors=True)

    def drafts(self) -> set[int]:
        """The units that have a draft, by one listing."""
        return _numbers(self._decisions)

    @contextmanager
    def new(self, folder: Path) -> Iterator[Path]:
        """A folder to fill, which gets the name `folder`, that of a draft or a finished unit, when it is on disk."""
        written = temporary_name(folder)
        written.mkdir()
        try:
            yield written
            for file in written.iterdir():
                sync(file)
            sync(written)
            try:
                rename(written, folder)
            except OSError:
                if not folder.exists() and not self._is_final():  # otherwise another process has written the same
                    raise
            sync(folder.parent)
        finally:
            shutil.rmtree(written, ignore_errors=True)

    def finish(self, source: Source, plan: Plan, beat: Callable[[], None]) -> tuple[Index, CorpusCounts | None]:
        """Make `output` of all units, which must be finished. Resumes where an earlier attempt was interrupted.

        Args:
            source: Source of the documents.
            plan: Plan of the preparation.
            beat: Called for each unit and file.

        Returns:
            The index, and the sum of the units' counts, or None if an earlier attempt has summed them up.

        Raises:
            UserError: Too many records are bad. Or the source has no documents or a split no tokens, which removes the folder.
        """
        counts = None if self._is_final() else self._assemble(source, plan, beat)
        index = load_index(self._final)
        shutil.rmtree(self._units, ignore_errors=True)  # first, so that no later preparation takes emptied units for finished
        check_absent(self.output)
        rename(self._final, self.output)
        self.remove()
        return index, counts

    def _assemble(self, source: Source, plan: Plan, beat: Callable[[], None]) -> CorpusCounts:
        """Assemble the data directory of the units, of which one is in memory at a time, and the index."""
        folders = [self.unit_folder(number) for number in range(len(plan.units))]
        total = UnitTotals()
        for folder in folders:
            beat()
            total.add(*Summary.load(folder))
        check_bad(source, total.counts)
        try:
            check_found(source, total.counts)
            splits = total.splits()
            written = total.counts.total.written
            share = plan.validation_share
            few = f"none of the {written} documents at `validation_share` {share}: change the share or give more documents"
            own = "no documents of its own: give other `input` or `validation_input`"
            check_filled(splits, own if source.validation else few)
        except UserError:
            self.remove()
            raise
        for name, skipped in plan.skipped.items():
            in_ledger = total.counts.inputs.setdefault(printable(name), DocumentCounts())
            in_ledger.add(DocumentCounts(skipped_files=skipped.files, skipped_bytes=skipped.bytes))
        self._final.mkdir(exist_ok=True)
        documents = [(number, path.name) for number, folder in enumerate(folders) for path in sorted(folder.glob(f"*{SUFFIX}"))]
        for number, file in total.files + documents:
            beat()
            if not (self._final / file).exists():  # an earlier attempt may have moved it
                rename(folders[number] / file, self._final / file)
        listed = {entry.file for entry in total.document_files}
        for path in sorted(self._final.glob(f"*{SUFFIX}")):
            if path.name not in listed:  # From a unit finished by an earlier version.
                beat()
                total.document_files.append(describe_documents(path))
        build_index(
            self._final,
            self.tokenizer(plan),
            source=plan.source,
            validation_share=plan.validation_share,
            splits=splits,
            counts=total.counts.total.dropped,
            document_tables=total.tables,
            ledger=total.counts.inputs,
            rules=plan.rules,
            document_files=total.document_files,
        )
        return total.counts

    def _is_final(self) -> bool:
        return (self._final / INDEX_FILE).exists()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


def unit_name(number: int) -> str:
    """Name of a unit's folder and lease."""
    return f"{number:05d}"


def _numbers(folder: Path) -> set[int]:
    """The numbers of units that are names in a folder; none if there is no folder."""
    with suppress(FileNotFoundError):
        return {int(name) for name in os.listdir(folder) if name.isdigit()}
    return set()
