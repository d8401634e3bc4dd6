"""Sources of documents: options saying where documents are, and the base class of their readers.

To add a kind of source, write a subclass of Reader, and add a line to SOURCES (megatape/registry.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from megatape.data.counts import RecordCounts
from megatape.data.io.inputs import check_distinct, list_inputs, listed_files, relative
from megatape.data.io.listing import Listing, SkippedFiles, summarize_skipped
from megatape.data.sources.document import Document
from megatape.data.sources.limits import MAX_BAD_FRACTION, MAX_RECORD_BYTES, MAX_SKIPPED_FRACTION
from megatape.data.sources.units import Unit, divide_files
from megatape.errors import UserError, flag, path_errors
from megatape.errors.suggestions import choose_one
from megatape.registry import SOURCES

# Options that do not affect the documents, or that are recorded with the rules.
UNDESCRIBED = ("max_bad_fraction", "max_skipped_fraction", "partial", "unit_bytes", "fields")


class Reader(ABC):
    """Base class of readers, one for each kind of source.

    Attributes:
        takes: Meaning of `input`: paths, a data set name, or nothing.
        patterns: File names to read in folders, ignoring case.
        limits_skipped: Whether many files with other names in a folder are an error.
        divides: Whether to divide a large uncompressed file into several units.
        has_subsets: Whether `subset` and `split` apply.
        has_fields: Whether `text_field` and `fields` apply.
    """

    takes: ClassVar[Literal["paths", "name", "nothing"]] = "paths"
    patterns: ClassVar[tuple[str, ...]] = ()
    limits_skipped: ClassVar[bool] = True
    divides: ClassVar[bool] = False
    has_subsets: ClassVar[bool] = False
    has_fields: ClassVar[bool] = False

    def units(self, source: "Source", inputs: tuple[str, ...], option: str = "input") -> list[Unit]:
        """Divide inputs into units, the same on every machine.

        Args:
            source: Source of the inputs.
            inputs: Paths, URLs or names.
            option: Option of the inputs, for errors.

        Raises:
            UserError: Inputs cannot be listed, or too much of a folder is skipped.
            MissingPath: An input is missing.
        """
        files = self.files(source, inputs, option)
        return divide_files(files, self.divides, source.unit_bytes)

    def files(self, source: "Source", inputs: tuple[str, ...], option: str = "input") -> list[str]:
        """Return the files of these inputs, in order.

        Raises:
            UserError: Inputs are missing, or too much of a folder is skipped.
        """
        max_fraction = 1.0
        if self.limits_skipped:
            max_fraction = source.max_skipped_fraction
        return listed_files(self.listings(source, inputs, option), option, source.partial, max_fraction)

    def listings(self, source: "Source", inputs: tuple[str, ...], option: str = "input") -> list[Listing]:
        """List the files to read, and the files skipped because of their names."""
        return list_inputs(inputs, *self.patterns, option=option)

    @abstractmethod
    def read(self, source: "Source", unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        """Yield the documents of a unit, including empty ones.

        Args:
            source: Source of this unit.
            unit: Unit to read.
            counts: Counts of skipped records, to update.

        Raises:
            FileNotFoundError: A file is missing.
            UserError: A file is corrupted.
        """

    def describe(self, source: "Source") -> dict[str, Any]:
        """Return further facts affecting the documents, for the index."""
        return {}


@dataclass(frozen=True)
class Source:
    """Source of documents.

    Attributes:
        kind: Name in SOURCES.
        inputs: Paths and URLs, one data set name (hub), nothing (python).
        subset: Configuration of a hub data set, such as `en`.
        max_documents: Stop reading after keeping this many documents. None: read all.
        max_record_bytes: Maximum size of a line, file or text. Longer ones are skipped.
        text_field: Name of the text field, such as `text`, or `body.text` inside another field of a JSON record.
        split: Split of a hub data set.
        validation: Paths and URLs of the validation split, read first. Empty: hold out a share of all documents.
        max_bad_fraction: Maximum fraction of bad or too long records, in a unit and in total. FEW_BAD records are always
            tolerated.
        max_skipped_fraction: Maximum fraction of a folder's files or bytes skipped because of their names, and of samples
            without text in tars. FEW_BAD samples are always tolerated.
        partial: Whether a folder may lack files of a numbered set.
        unit_bytes: Unit size. None: UNIT_BYTES.
        fields: Fields that cleaning rules need, such as `license`, or `metadata.license` inside another field.
    """

    kind: str
    inputs: tuple[str, ...] = ()
    subset: str | None = None
    max_documents: int | None = None
    max_record_bytes: int = MAX_RECORD_BYTES
    text_field: str = "text"
    split: str = "train"
    validation: tuple[str, ...] = ()
    max_bad_fraction: float = MAX_BAD_FRACTION
    partial: bool = False
    unit_bytes: int | None = None
    fields: tuple[str, ...] = ()
    max_skipped_fraction: float = MAX_SKIPPED_FRACTION

    def __post_init__(self) -> None:
        if self.kind not in SOURCES:
            raise UserError(f"{flag('source')} {self.kind!r} is unknown: {choose_one(self.kind, SOURCES)}")
        self._check_inputs()
        self._check_fields()
        if self.validation and self.reader.takes != "paths":
            raise UserError(
                f"{flag('validation_input')} {' '.join(self.validation)}: {flag('source')} {self.kind} has no files: remove it"
            )
        if self.validation and self.max_documents is not None:
            raise UserError(f"{flag('max_documents')} and {flag('validation_input')}: give one of them, or fewer files")

    def _check_inputs(self) -> None:
        takes = self.reader.takes
        if takes == "nothing" and self.inputs:
            raise UserError(
                f"{flag('source')} {self.kind} takes no {flag('input')}, got {list(self.inputs)}: remove it or name another "
                "source"
            )
        if takes != "nothing" and not self.inputs:
            raise UserError(f"{flag('source')} {self.kind} needs {flag('input')}: give at least one")
        if takes == "name" and len(self.inputs) != 1:
            raise UserError(f"{flag('source')} {self.kind} takes one data set name as {flag('input')}, got {list(self.inputs)}")

    def _check_fields(self) -> None:
        reader = self.reader
        for name, value, default in (("subset", self.subset, None), ("split", self.split, "train")):
            if value != default and not reader.has_subsets:
                raise UserError(
                    f"{flag(name)} {value!r} belongs to {flag('source')} hub, got {flag('source')} {self.kind}: remove it"
                )
        if self.text_field != "text" and not reader.has_fields:
            raise UserError(
                f"{flag('text_field')} {self.text_field!r}: the documents of {flag('source')} {self.kind} have no fields: "
                "remove it"
            )
        if self.fields and not reader.has_fields:
            raise UserError(
                f"the documents of {flag('source')} {self.kind} have no fields, but a rule reads {self.fields[0]}: remove it"
            )

    @property
    def reader(self) -> Reader:
        """Reader of this kind."""
        return SOURCES[self.kind].load()()

    @property
    def all_inputs(self) -> tuple[str, ...]:
        """Inputs of both splits."""
        return self.inputs + self.validation

    def units(self) -> list[Unit]:
        """Divide all inputs into units.

        Units of the validation split come first, so that it keeps a document occurring in both splits. With max_documents
        there is one unit, because only a pass in order knows where to stop.
        """
        units = self.reader.units(self, self.inputs)
        if self.validation:
            held_out = self.reader.units(self, self.validation, "validation_input")
            check_distinct([*_inputs(units), *_inputs(held_out)], "validation_input")
            validation_units = [replace(unit, split="validation") for unit in held_out]
            training_units = [replace(unit, split="train") for unit in units]
            return validation_units + training_units
        if self.max_documents is None or len(units) == 1:
            return units
        return [_joined(units)]

    @path_errors()
    def skipped_files(self) -> dict[str, SkippedFiles]:
        """Return the files skipped because of their names, by input. Inputs without any are omitted.

        Raises:
            UserError: Inputs are missing or cannot be listed.
        """
        if self.reader.takes != "paths":
            return {}
        listings = self.reader.listings(self, self.inputs)
        if self.validation:
            listings += self.reader.listings(self, self.validation, "validation_input")
        return summarize_skipped(listings)

    def input_of(self, name: str) -> str:
        """Return the element of `inputs` or `validation` containing a unit's input; for a source without inputs, its kind."""
        inputs = self.all_inputs
        if len(inputs) == 1:
            return inputs[0]
        for user_input in inputs:
            if relative(name, user_input) is not None:
                return user_input
        return self.kind

    def describe(self) -> dict[str, Any]:
        """Return the index entry of the source: fields that affect its documents and differ from their defaults."""
        described: dict[str, Any] = {}
        for option in fields(self):
            value = getattr(self, option.name)
            if value == option.default or option.name in UNDESCRIBED:
                continue
            if isinstance(value, tuple):
                value = list(value)
            described[option.name] = value
        return described | self.reader.describe(self)


def _inputs(units: list[Unit]) -> list[str]:
    """Return the distinct inputs of all units: a file may be divided into several units."""
    inputs: dict[str, None] = {}
    for unit in units:
        inputs.update(dict.fromkeys(unit.inputs))
    return list(inputs)


def _joined(units: list[Unit]) -> Unit:
    """Return one unit with all inputs, none of them divided."""
    versions: dict[str, str] = {}
    for unit in units:
        versions.update(zip(unit.inputs, unit.versions, strict=False))
    num_bytes = sum(unit.num_bytes for unit in units)
    return Unit(tuple(_inputs(units)), num_bytes, versions=tuple(versions.values()))
