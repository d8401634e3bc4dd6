"""The folder of an unfinished preparation, OUTPUT.partial: safe to share and to kill.

    plan.json              plan: source, tokenizer, rules, and the checksum of its units
    units-CHECKSUM.jsonl   units of the plan (stored_units.py)
    tokenizer/             files of the tokenizer
    verdicts/00003/        result of the first pass over a unit (passes/), with its texts if documents are kept
    references/00003/      keys of documents of other data directories (passes/)
    compared/              results of the decision pass (passes/)
    units/00003/           result of the write pass, a finished unit: shards, document tables, summary and token counts,
                           with its texts if documents are kept
    00003.claim            lease of the process working on the unit (folder_leases.py)
    final/                 data directory, while it is being assembled

A result is written under another name and renamed when its files are on disk, so it exists completely or not at all. The plan
decides every byte of it: two processes working on the same unit only waste time, because the second rename fails.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from megatape.data.document_entries import INDEX_FILE
from megatape.data.io.local_folder import PARTIAL
from megatape.data.prepare.part_summary import Part, PartTotals
from megatape.data.prepare.shared_folder.folder_leases import LEASE_SUFFIX, FolderLeases
from megatape.data.prepare.shared_folder.plan import Plan
from megatape.data.prepare.shared_folder.stored_units import StoredUnits, pack_units, units_checksum
from megatape.data.shards.index import MAX_INDEX_BYTES
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import ExistingPath, UserError, content_errors, flag
from megatape.reliability.lease import LeaseTimeouts
from megatape.utils.files.atomic import rename, write_atomically
from megatape.utils.files.files import sync
from megatape.utils.files.json_files import json_content, read_json
from megatape.utils.files.paths import temporary_name
from megatape.utils.values.validation import as_type

PLAN = "plan.json"
UnitsChecksum = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class PartialFolder:
    """Folder of an unfinished preparation.

    Attributes:
        output: Data directory to prepare.
        path: The folder.
        final: Folder for assembling the data directory.
        leases: Leases of all processes working in the folder.
    """

    def __init__(self, output: Path, timeouts: LeaseTimeouts) -> None:
        self.output = output
        self.path = output.with_name(f"{output.name}{PARTIAL}")
        self.final = self.path / "final"
        self.leases = FolderLeases(self.path, timeouts)
        self._units = self.path / "units"
        self._first_passes = self.path / "verdicts"
        self._references = self.path / "references"
        self._comparisons = self.path / "compared"
        self._tokenizer = self.path / "tokenizer"

    def create(self) -> bool:
        """Create the folder.

        Returns:
            False if it already exists.

        Raises:
            ExistingPath: The folder belongs to something else, or contains a link that would redirect writes.
        """
        parts = (self._units, self.final, self._first_passes, self._references, self._comparisons, self._tokenizer)
        created = not self._units.is_dir()
        if created:
            self._check_empty({PLAN, *(part.name for part in parts)})
        for folder in parts:
            if folder.is_symlink():
                raise ExistingPath(f"{folder} is a link, through which nothing is written: remove it, or choose another output")
        self._units.mkdir(parents=True, exist_ok=True)
        self._first_passes.mkdir(exist_ok=True)
        self._references.mkdir(exist_ok=True)
        self._comparisons.mkdir(exist_ok=True)
        return created

    def _check_empty(self, expected: set[str]) -> None:
        """Raise ExistingPath if the folder contains files other than a preparation's."""
        for path in self.path.glob("*"):
            is_ours = path.suffix in (LEASE_SUFFIX, ".tmp") or path.match(_units_file("*"))
            if path.name not in expected and not is_ours:
                raise ExistingPath(
                    f"{self.path} has {path.name}, so it is not an unfinished preparation: rename it, or choose another output"
                )

    def store_plan(self, plan: Plan, tokenizer: Tokenizer) -> None:
        self._tokenizer.mkdir(exist_ok=True)
        for file, content in tokenizer.files.items():
            write_atomically(self._tokenizer / file, content)
        units = pack_units(plan.units)
        checksum = units_checksum(units)
        # Every plan has units of its own, so that both are replaced at the same time.
        write_atomically(self.path / _units_file(checksum), units)
        fields = asdict(replace(plan, units=[]))
        del fields["units"]
        fields["units_checksum"] = checksum
        write_atomically(self.path / PLAN, json_content(fields, PLAN, indent=1))

    def plan(self) -> Plan | None:
        """Return the stored plan, or None if there is none. Raises UserError if it is corrupted."""
        path = self.path / PLAN
        if not path.exists():
            return None
        remedy = f"remove {self.path}, which loses what it holds"
        with content_errors(f"{path}: corrupted", remedy):
            # Earlier versions store the units in the same file.
            content = read_json(path, max_bytes=MAX_INDEX_BYTES)
            if not isinstance(content, dict) or "units" in content:
                return as_type(content, Plan)
            checksum = as_type(content.pop("units_checksum", None), UnitsChecksum)
            plan = as_type({**content, "units": []}, Plan)
        units_path = self.path / _units_file(checksum)
        with content_errors(f"{units_path}: corrupted", remedy):
            return replace(plan, units=StoredUnits(units_path, checksum))

    def tokenizer(self, plan: Plan) -> Tokenizer:
        """Return the stored tokenizer. Raises FileNotFoundError or UserError if its files have changed."""
        return stored_tokenizer(self._tokenizer, plan.tokenizer.files)

    def first_pass(self, number: int) -> Path:
        """Return the folder for the first pass over a unit."""
        return self._first_passes / unit_name(number)

    def reference(self, number: int) -> Path:
        """Return the folder for a unit of other data directories."""
        return self._references / unit_name(number)

    def references(self) -> set[int]:
        """Return the finished units of other data directories, with one listing."""
        return _numbers(self._references)

    def comparison(self, name: str) -> Path:
        """Return the file of this name for a result of the decision pass."""
        return self._comparisons / name

    def comparisons(self) -> set[str]:
        """Return the names of the results of the decision pass, with one listing."""
        return set(os.listdir(self._comparisons))

    def unit_folder(self, number: int) -> Path:
        return self._units / unit_name(number)

    def is_finished(self, number: int) -> bool:
        """Whether a unit is finished."""
        return self.unit_folder(number).exists() or self.is_final()

    def has_first_pass(self, number: int) -> bool:
        """Whether a unit has a first-pass result or is finished."""
        return self.first_pass(number).exists() or self.is_finished(number)

    def finished(self, num_units: int) -> set[int]:
        """Return the finished units, with one listing. All are finished once the data directory is complete."""
        finished = _numbers(self._units)
        if len(finished) != num_units and self.is_final():
            return set(range(num_units))
        return finished

    def first_passes(self) -> set[int]:
        """Return the units with a first-pass result, with one listing."""
        return _numbers(self._first_passes)

    def has_finished_work(self) -> bool:
        """Whether a unit has a result of any pass, or a process is working on one."""
        return self.is_final() or bool(_numbers(self._units) or self.first_passes() or self.leases.leased())

    def is_final(self) -> bool:
        """Whether the data directory is complete, except for its name."""
        return (self.final / INDEX_FILE).exists()

    def discard(self, numbers: Iterable[int]) -> None:
        """Remove all results of the decision pass and of some units, so that these units are prepared again.

        Raises:
            UserError: The data directory is already complete, except for its name.
        """
        if self.is_final():
            raise UserError(f"{self.final} is complete: give the same command without {flag('redo')}, which renames it")
        for path in self._comparisons.iterdir():
            path.unlink(missing_ok=True)
        for number in numbers:
            unit = self.unit_folder(number)
            # The unit may be unfinished or have no summary.
            with suppress(OSError, UserError):
                self._discard_final_files(unit)
            shutil.rmtree(unit, ignore_errors=True)
            shutil.rmtree(self.first_pass(number), ignore_errors=True)

    def _discard_final_files(self, unit: Path) -> None:
        """Remove the files of a unit that an interrupted assembly has already moved."""
        totals = PartTotals()
        totals.add(Part.load(unit))
        files = [file.name for file in totals.files]
        files += [entry.file for entry in totals.document_files]
        for file in files:
            (self.final / file).unlink(missing_ok=True)

    @contextmanager
    def new(self, folder: Path) -> Iterator[Path]:
        """Yield a temporary folder to fill. Once it is on disk, rename it to `folder`."""
        temporary = temporary_name(folder)
        temporary.mkdir()
        try:
            yield temporary
            for file in temporary.iterdir():
                sync(file)
            sync(temporary)
            try:
                rename(temporary, folder)
            except OSError:
                # Another process may have finished the same work.
                if not folder.exists() and not self.is_final():
                    raise
            sync(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def remove_units(self) -> None:
        shutil.rmtree(self._units, ignore_errors=True)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _units_file(checksum: str) -> str:
    return f"units-{checksum}.jsonl"


def unit_name(number: int) -> str:
    """Return the name of a unit's folders and leases."""
    return f"{number:05d}"


def _numbers(folder: Path) -> set[int]:
    """Return the unit numbers in a folder. A missing folder is empty."""
    with suppress(FileNotFoundError):
        return {int(name) for name in os.listdir(folder) if name.isdigit()}
    return set()
