"""A data directory in the making, OUTPUT.partial.

Any number of processes and machines may work on it, and it survives all of them.

    plan.json              what is prepared, from which files, with which tokenizer
    tokenizers/            the tokenizer, in place; several in a folder each, here and in what follows
    verdicts/              what a first pass found out about the documents of each unit, and what comparing them has shown
    units/00003/           a finished unit: its shards, tables of documents, summary and how often each token occurs
    00003.claim            names the process that works on it
    final/                 the result, while it is put together

A unit is written under another name and renamed when its files are on disk, so it is there whole or not at all, and the plan
decides every byte of it. Two processes that work on the same unit only waste time: the second rename fails.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from megatape.data.prepare.summary import SUMMARY, Summary, check_filled, merged
from megatape.data.prepare.unit_lease import Claim, Patience, claimed
from megatape.data.shards.index import INDEX_FILE, SPLITS, Index, TokenizerEntry, load_index, save_index, token_dtype
from megatape.data.shards.ledger import check_ledger
from megatape.data.sources.reading import check_bad, check_found
from megatape.data.sources.source import CorpusCounts, Source, Unit
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from megatape.files import as_type, check_absent, read_json, sync, write_atomically
from megatape.runtime.holder import HeartbeatMonitor, read_holder

PLAN = "plan.json"
VERSION = 3  # of how units are made: a folder that another version has begun is refused


@dataclass(frozen=True)
class Plan:
    """What decides every byte of the result.

    source: as the index records it. units: all parts of the source, in order. tokenizers: by the name of the data directory
    below the output, which is empty where there is only one. trained_vocab_size: of a tokenizer that was trained on the source;
    None if it was given. drop_duplicates: whether documents that equal an earlier one are left out. rules: by which others are
    left out or changed, with their options and the versions of what applies them.
    """

    source: dict[str, Any]
    units: list[Unit]
    validation_share: float
    tokenizers: dict[str, TokenizerEntry]
    trained_vocab_size: int | None
    drop_duplicates: bool
    rules: list[dict[str, Any]]
    version: int = VERSION

    def difference(self, other: "Plan", used: set[int]) -> str | None:
        """The first thing in which another plan differs, with both values, if it matters for what was made.

        It matters if what was made of the `used` units does not fit the other plan. A file that has changed is no difference
        while nothing was made of its unit: a corrupted one was replaced.
        """
        names = "version", "source", "validation_share", "trained_vocab_size", "drop_duplicates", "rules", "tokenizers"
        for name in names:
            if (mine := getattr(self, name)) != (its := getattr(other, name)):
                return f"{name}: {mine}, now {its}"
        if len(self.units) != len(other.units):
            return f"inputs: {len(self.units)} parts, now {len(other.units)}"
        for number, (mine, its) in enumerate(zip(self.units, other.units, strict=True)):
            if mine != its and (number in used or replace(mine, num_bytes=its.num_bytes, versions=its.versions) != its):
                return f"inputs: {mine.difference(its)}"
        return None


class PartialFolder:
    """The folder of the preparation of `output`.

    names: of the data directories in `output`; the empty name is `output` itself.
    """

    def __init__(self, output: Path, patience: Patience, names: Sequence[str] = ("",)) -> None:
        self.output, self.path, self.patience, self.names = output, output.with_name(f"{output.name}.partial"), patience, names
        self._units, self._final, self._verdicts, self._tokenizers = (
            self.path / name for name in ("units", "final", "verdicts", "tokenizers")
        )
        self._monitors: defaultdict[str, HeartbeatMonitor] = defaultdict(HeartbeatMonitor)  # of claims, by their names

    def create(self) -> bool:
        """Make the folder. Returns False if it is there already."""
        made = not self._units.is_dir()
        self._units.mkdir(parents=True, exist_ok=True)
        self._verdicts.mkdir(exist_ok=True)
        return made

    def claim(self, name: str) -> AbstractContextManager[Claim | None]:
        """Claim a unit by its `unit_name`, or some other step."""
        return claimed(self._claim(name), self.patience, self._monitors[name])

    def holder(self, name: str) -> str:
        """Who holds a claim, for messages."""
        path = self._claim(name)
        with suppress(OSError):
            return f"{path}, which {read_holder(path.read_bytes()) or 'an unknown process'} holds"
        return str(path)

    def _claim(self, name: str) -> Path:
        return self.path / f"{name}.claim"

    def begin(self, plan: Plan, tokenizers: dict[str, Tokenizer]) -> None:
        """Store plan and tokenizers."""
        for name, tokenizer in tokenizers.items():
            folder = self._tokenizers / name
            folder.mkdir(parents=True, exist_ok=True)
            for file, content in tokenizer.files.items():
                write_atomically(folder / file, content)
        write_atomically(self.path / PLAN, json.dumps(asdict(plan), indent=1).encode())

    def plan(self) -> Plan | None:
        """The plan, if one is stored. Raises UserError if it cannot be read."""
        path = self.path / PLAN
        if not path.exists():
            return None
        try:
            return as_type(read_json(path), Plan)
        except ValueError as error:
            raise UserError(f"{path}: corrupted ({error}): remove {self.path}, which loses what it holds") from error

    def tokenizers(self, plan: Plan) -> dict[str, Tokenizer]:
        """The stored tokenizers. Raises FileNotFoundError or UserError if their files have changed."""
        return {name: stored_tokenizer(self._tokenizers / name, entry.files) for name, entry in plan.tokenizers.items()}

    def first_pass(self, number: int) -> Path:
        """What verdicts.FirstPass has found out about a unit."""
        return self._verdicts / f"{unit_name(number)}.npz"

    def compared(self) -> Path:
        """What verdicts.compare has found out about all of them."""
        return self._verdicts / "compared.npz"

    def unit_folder(self, number: int) -> Path:
        """Where a finished unit is."""
        return self._units / unit_name(number)

    def is_finished(self, number: int) -> bool:
        """Whether a unit is there, or all of them are in the result already."""
        return all((self.unit_folder(number) / name / SUMMARY).exists() for name in self.names) or self._is_final()

    def commit(self, written: Path, number: int) -> None:
        """Make the folder `written`, beside `unit_folder`, the finished unit."""
        for file in written.rglob("*"):
            sync(file)
        sync(written)
        try:
            written.rename(self.unit_folder(number))
        except OSError:
            if not self.is_finished(number):  # else another process was faster, and has written the same
                raise
        sync(self._units)

    def finish(self, source: Source, plan: Plan) -> tuple[Index, CorpusCounts | None]:
        """Make `output` of all units, which must be finished. Goes on where an earlier attempt was interrupted.

        Returns the index of its first data directory and the sum of what the units counted, unless an earlier attempt has
        summed it up. Raises UserError if too many records are bad; also, and removes the folder, if the source has no
        documents or a split has no tokens.
        """
        counts = None
        if not self._is_final():
            for name in self.names:
                counts = self._assemble(name, source, plan)
        index = load_index(self._final / self.names[0])
        shutil.rmtree(self._units, ignore_errors=True)  # first, so that no later preparation takes emptied units for finished
        check_absent(self.output)
        self._final.rename(self.output)
        self.remove()
        return index, counts

    def _assemble(self, name: str, source: Source, plan: Plan) -> CorpusCounts:
        """Put one data directory together."""
        counts, tokenizer, final = CorpusCounts(), plan.tokenizers[name], self._final / name
        units = [Summary.load(self.unit_folder(number) / name) for number in range(len(plan.units))]
        for unit in units:
            counts.add(unit.counts)
        check_bad(source, counts)
        splits = {split: merged([unit.splits[split] for unit in units]) for split in SPLITS}
        try:
            check_found(source, counts)
            check_filled(splits, counts, plan.validation_share)
        except ValueError:
            self.remove()
            raise
        final.mkdir(parents=True, exist_ok=True)
        for number, unit in enumerate(units):
            for file in (file for written in unit.splits.values() for file in written.files):
                if not (final / file).exists():  # an earlier attempt may have moved it
                    (self.unit_folder(number) / name / file).rename(final / file)
        for file in tokenizer.files:
            shutil.copyfile(self._tokenizers / name / file, final / file)
        index = Index(
            tokenizer=tokenizer,
            dtype=token_dtype(tokenizer.vocab_size).name,
            source=plan.source,
            validation_share=plan.validation_share,
            splits=splits,
            counts=counts.recorded(),
            document_tables={split: [table for unit in units for table in unit.splits[split].tables] for split in SPLITS},
            ledger=counts.inputs,
            rules=plan.rules,
        )
        check_ledger(index)
        save_index(index, final)
        return counts

    def _is_final(self) -> bool:
        return all((self._final / name / INDEX_FILE).exists() for name in self.names)

    def is_claimed(self) -> bool:
        """Whether any process has a claim."""
        return any(self.path.glob("*.claim"))

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


def unit_name(number: int) -> str:
    """Of a unit's folder and claim."""
    return f"{number:05d}"
