"""A corpus to prepare, and the plan of its data directories."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.io.listing import SkippedFiles
from megatape.data.io.remote import FileState
from megatape.data.shards.entries import TokenizerEntry
from megatape.data.sources.source import Source
from megatape.data.sources.units import UNIT_BYTES, Unit
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError

NOTHING_SKIPPED: Mapping[str, SkippedFiles] = {}
VERSION = 8  # Version of the preparation of units. Folders begun by another version are refused.


@dataclass(frozen=True)
class Plan:
    """Everything that decides the bytes of the result.

    Attributes:
        source: Record of the source in the index.
        units: All parts of the source, in order.
        validation_share: Share of the documents in the validation split; 0 if it has its own inputs.
        tokenizer: Tokenizer of the data.
        trained_vocab_size: Size of a tokenizer that was trained on the source; None if it was given.
        drop_duplicates: Whether documents that equal an earlier one are dropped.
        rules: Other rules of cleaning, with their options and the versions of their packages.
        unit_bytes: Size of units.
        keep_documents: Whether documents are written, too.
        skipped: Files skipped because of their names, by input, for the ledger. They do not affect documents, so they may
            differ when a command resumes.
    """

    source: dict[str, Any]
    units: list[Unit]
    validation_share: float
    tokenizer: TokenizerEntry
    trained_vocab_size: int | None
    drop_duplicates: bool
    rules: list[dict[str, Any]]
    version: int = VERSION
    unit_bytes: int = UNIT_BYTES
    keep_documents: bool = False
    skipped: dict[str, SkippedFiles] = field(default_factory=dict)

    def difference(self, other: "Plan", used: set[int]) -> str | None:
        """The first difference of another plan, with both values, if the results of the `used` units do not fit it.

        A changed file is no difference while its unit has no result: a corrupted file was replaced.
        """
        names = "version", "source", "validation_share", "trained_vocab_size", "drop_duplicates", "rules", "tokenizer"
        for name in (*names, "unit_bytes", "keep_documents"):
            if (mine := getattr(self, name)) != (its := getattr(other, name)):
                return f"{name}: {mine}, now {its}"
        mine = files_of(self.units)
        its = files_of(other.units)
        if missing := sorted(mine.keys() - its.keys()):
            return f"inputs: {_first_of(missing)}, which cannot be found now"
        if added := sorted(its.keys() - mine.keys()):
            return f"inputs, without {_first_of(added)}"
        if len(self.units) != len(other.units):
            changed = self.changed_files(other)
            return f"inputs: {_first_of(changed)} has changed" if changed else f"inputs: {len(self.units)} parts"
        for number, (mine, its) in enumerate(zip(self.units, other.units, strict=True)):
            as_changed = replace(mine, num_bytes=its.num_bytes, end=its.end, versions=its.versions)
            if mine != its and (number in used or as_changed != its):
                return f"inputs: {mine.difference(its)}"
        return None

    def changed_files(self, other: "Plan") -> list[str]:
        """Return the names of the files whose version differs in another plan, in order."""
        mine = files_of(self.units)
        its = files_of(other.units)
        return sorted(name for name in mine.keys() & its.keys() if mine[name] != its[name])

    def with_states(self, numbers: Collection[int], states: Mapping[str, FileState]) -> "Plan":
        """Return the plan after some files have changed, with the same division into units.

        Args:
            numbers: Numbers of all units that read one of the files.
            states: Present states of all files that these units read.

        Raises:
            UserError: A file is now too short for its units.
        """
        ends: dict[str, int] = {}  # End of the last unit of each divided file.
        for unit in self.units:
            if unit.end is not None:
                ends[unit.inputs[0]] = max(unit.end, ends.get(unit.inputs[0], 0))
        units = list(self.units)
        for number in numbers:
            unit = units[number]
            versions = tuple(states[name].version for name in unit.inputs)
            if unit.end is None:
                num_bytes = sum(states[name].size for name in unit.inputs)
                units[number] = replace(unit, num_bytes=num_bytes, versions=versions)
                continue
            (name,) = unit.inputs
            end = unit.end
            if end == ends[name]:
                end = states[name].size
            if not unit.begin < end <= states[name].size:
                raise UserError(f"{name} has only {states[name].size:,} bytes now: remove the unfinished folder to begin again")
            units[number] = replace(unit, num_bytes=end - unit.begin, end=end, versions=versions)
        return replace(self, units=units)


def files_of(units: Iterable[Unit]) -> dict[str, str]:
    """Return the version of each file of the units, by name. Sources without files have none."""
    return {name: version for unit in units for name, version in zip(unit.inputs, unit.versions, strict=False)}


def _first_of(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{names[0]} and {len(names) - 1:,} more"


@dataclass(frozen=True)
class Corpus:
    """Documents to prepare, and how.

    Attributes:
        source: Source of the documents.
        validation_share: Share of the documents in the validation split, if the source has no inputs for it.
        tokenizer: Tokenizer of the data. None: one is trained on the source.
        vocab_size: Number of tokens of a tokenizer to train.
        cleaning: Rules that drop or edit documents.
        keep_documents: Whether documents that were kept and dropped are written, too (documents.py).
    """

    source: Source
    validation_share: float
    tokenizer: Tokenizer | None
    vocab_size: int
    cleaning: Cleaning = field(default_factory=Cleaning)
    keep_documents: bool = False

    def __post_init__(self) -> None:
        assert set(self.cleaning.needs) <= set(self.source.fields), "a rule needs a field that the source does not read"

    def plan(self, units: list[Unit], tokenizer: Tokenizer, skipped: Mapping[str, SkippedFiles] = NOTHING_SKIPPED) -> Plan:
        """Return the plan for these units.

        Args:
            units: Units of the source.
            tokenizer: Tokenizer, given or trained.
            skipped: Result of `Source.skipped_files`.
        """
        return Plan(
            source=self.source.describe(),
            units=units,
            validation_share=0.0 if self.source.validation else self.validation_share,
            tokenizer=TokenizerEntry.of(tokenizer),
            trained_vocab_size=None if self.tokenizer else self.vocab_size,
            drop_duplicates=self.cleaning.drop_duplicates,
            rules=self.cleaning.describe(),
            unit_bytes=self.source.unit_bytes or UNIT_BYTES,
            keep_documents=self.keep_documents,
            skipped=dict(skipped),
        )
