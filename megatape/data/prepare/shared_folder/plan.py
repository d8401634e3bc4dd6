"""Plan of a preparation: stored facts that decide every byte of the result."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from megatape.data.cleaning.decisions import NEAR_DUPLICATES
from megatape.data.io.files import FileState, file_states
from megatape.data.io.listing import SkippedFiles
from megatape.data.shards.entries import TokenizerEntry
from megatape.data.sources.units import UNIT_BYTES, Unit
from megatape.errors import UserError

# Version of everything that decides the content of units. A folder begun by another version cannot be resumed.
VERSION = 9
# Fields compared when resuming, in the order in which differences are reported. Units are compared separately.
COMPARED_FIELDS = (
    "version",
    "source",
    "validation_share",
    "trained_vocab_size",
    "drop_duplicates",
    "rules",
    "tokenizer",
    "unit_bytes",
    "keep_documents",
)


@dataclass(frozen=True)
class Plan:
    """Everything that affects the bytes of the result.

    Attributes:
        source: Index entry of the source.
        units: All units of the source, in order.
        validation_share: Share of documents to hold out for validation; 0 if the source has validation inputs.
        tokenizer: Tokenizer for the data.
        trained_vocab_size: Vocabulary size of a tokenizer trained on the source; None if the user gave one.
        drop_duplicates: Whether to drop exact duplicates.
        rules: Other cleaning rules, with their options and package versions.
        version: Version of the preparation.
        unit_bytes: Unit size in bytes.
        keep_documents: Whether to write the texts of documents as well.
        skipped: Files skipped because of their names, by input, for the ledger. They do not affect documents, so they may
            differ when resuming.
    """

    source: dict[str, Any]
    units: Sequence[Unit]
    validation_share: float
    tokenizer: TokenizerEntry
    trained_vocab_size: int | None
    drop_duplicates: bool
    rules: list[dict[str, Any]]
    version: int = VERSION
    unit_bytes: int = UNIT_BYTES
    keep_documents: bool = False
    skipped: dict[str, SkippedFiles] = field(default_factory=dict)

    @property
    def compares_units(self) -> bool:
        """Whether documents are compared with other units or folders. Each unit then takes a first and a write pass."""
        options = {rule["rule"]: rule["options"] for rule in self.rules}
        compares_folders = bool(options.get(NEAR_DUPLICATES, {}).get("folders"))
        if compares_folders:
            return True
        compares_documents = self.drop_duplicates or NEAR_DUPLICATES in options
        return compares_documents and len(self.units) > 1

    def difference(self, other: "Plan", used: set[int]) -> str | None:
        """Return the first difference from another plan, with both values, or None if the finished work fits it.

        A changed file is no difference as long as its unit has no result: a corrupted file was replaced.

        Args:
            other: Plan of the present options.
            used: Units with results.
        """
        for name in COMPARED_FIELDS:
            stored = getattr(self, name)
            present = getattr(other, name)
            if stored != present:
                return f"{name}: {stored}, now {present}"
        return self._input_difference(other, used)

    def _input_difference(self, other: "Plan", used: set[int]) -> str | None:
        stored_files = files_of(self.units)
        present_files = files_of(other.units)
        missing = sorted(stored_files.keys() - present_files.keys())
        if missing:
            return f"inputs: {_first_of(missing)}, which cannot be found now"
        added = sorted(present_files.keys() - stored_files.keys())
        if added:
            return f"inputs, without {_first_of(added)}"
        if len(self.units) != len(other.units):
            changed = self.changed_files(other)
            if changed:
                return f"inputs: {_first_of(changed)} has changed"
            return f"inputs: {len(self.units)} parts"
        for number, (stored_unit, present_unit) in enumerate(zip(self.units, other.units, strict=True)):
            # Equal to the present unit if the two differ only by a change of the file.
            updated = replace(
                stored_unit, num_bytes=present_unit.num_bytes, end=present_unit.end, versions=present_unit.versions
            )
            if stored_unit != present_unit and (number in used or updated != present_unit):
                return f"inputs: {stored_unit.difference(present_unit)}"
        return None

    def changed_files(self, other: "Plan") -> list[str]:
        """Return the names of the files whose version differs in another plan, in order."""
        versions = files_of(self.units)
        other_versions = files_of(other.units)
        return sorted(name for name in versions.keys() & other_versions.keys() if versions[name] != other_versions[name])

    def with_present_files(self, names: Collection[str]) -> "UpdatedPlan":
        """Return the plan for the present content of some files.

        Raises:
            UserError: A file is now too short for its units.
        """
        numbers = {number for number, unit in enumerate(self.units) if not set(unit.inputs).isdisjoint(names)}
        names_to_check = set[str]()
        for number in numbers:
            names_to_check.update(self.units[number].inputs)
        files = sorted(names_to_check)
        states = dict(zip(files, file_states(files), strict=True))
        return UpdatedPlan(self._with_states(numbers, states), numbers)

    def _with_states(self, numbers: Collection[int], states: Mapping[str, FileState]) -> "Plan":
        """Return the plan with the same division into units after some files have changed.

        Args:
            numbers: Units reading one of the files.
            states: Present states of all files read by these units.
        """
        # Divided file -> end of its last unit.
        ends: dict[str, int] = {}
        for unit in self.units:
            if unit.end is not None:
                name = unit.inputs[0]
                ends[name] = max(unit.end, ends.get(name, 0))
        units = list(self.units)
        for number in numbers:
            unit = units[number]
            versions = tuple(states[name].version for name in unit.inputs)
            if unit.end is None:
                num_bytes = sum(states[name].size for name in unit.inputs)
                units[number] = replace(unit, num_bytes=num_bytes, versions=versions)
                continue
            (name,) = unit.inputs
            size = states[name].size
            end = unit.end
            if end == ends[name]:
                end = size
            if not unit.begin < end <= size:
                raise UserError(f"{name} has only {size:,} bytes now: remove the unfinished folder to begin again")
            units[number] = replace(unit, num_bytes=end - unit.begin, end=end, versions=versions)
        return replace(self, units=units)


class UpdatedPlan(NamedTuple):
    """Plan for the present content of some files, with the numbers of units reading one."""

    plan: Plan
    numbers: set[int]


def files_of(units: Iterable[Unit]) -> dict[str, str]:
    """Return file versions by name. Sources without files have none."""
    versions: dict[str, str] = {}
    for unit in units:
        versions.update(zip(unit.inputs, unit.versions, strict=False))
    return versions


def _first_of(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{names[0]} and {len(names) - 1:,} more"
