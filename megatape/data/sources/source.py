"""A source of documents: how it is read, what becomes of each document, and what is counted on the way.

A new kind of source is a file with a subclass of Reader and a line in SOURCES (megatape/registry.py).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple

from megatape.data.counts import (
    BAD,
    EMPTY_DOCUMENTS,
    FEW_BAD,
    TOO_LONG,
    WITHOUT_TEXT,
    CorpusCounts,
    DocumentCounts,
    RecordCounts,
    check_bad_records,
    sort_reasons,
)
from megatape.data.io.listing import Listing, SkippedFiles, summarize_skipped
from megatape.data.io.remote import check_distinct, list_inputs, listed_files, relative
from megatape.data.printable import printable
from megatape.data.sources.limits import MAX_BAD_FRACTION, MAX_RECORD_BYTES, MAX_SKIPPED_FRACTION
from megatape.data.sources.units import Unit, grouped
from megatape.errors import UserError, choose_one, path_errors
from megatape.registry import SOURCES


class Document(NamedTuple):
    """A document of a source.

    Attributes:
        text: Its text.
        place: Place in the source such as `file:line`, the same on every machine with the same inputs.
        url: Address at which the source found it; empty if unknown.
        input: The one of `Source.inputs` that has it, filled in by `read_unit`.
        scores: Scores by cleaning rules, by their names, filled in by `read_unit`.
        fields: Values of `Source.fields`, for the rules alone.
        content: Its text in UTF-8, filled in by `read_unit`.
        digest: Hash of its content, filled in by `read_unit`.
    """

    text: str
    place: str
    url: str = ""
    input: str = ""
    scores: Mapping[str, float] = {}
    fields: Mapping[str, Any] = {}
    content: bytes = b""
    digest: bytes = b""


class Decision(NamedTuple):
    """What becomes of a document: it is kept if it has a text, and otherwise dropped.

    Attributes:
        text: Text to write; None: the document is dropped.
        rule: Name of the rule that drops it.
        reason: The rule's reason, one of few; empty for a rule with a single one.
        edits: Name of each rule that changed the text, and the text that it left.
        scores: Score by each rule that gives one, by the rule's name.
        content: The text in UTF-8.
        digest: Hash of the content.
    """

    text: str | None
    rule: str = ""
    reason: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    scores: Mapping[str, float] = {}
    content: bytes = b""
    digest: bytes = b""

    @property
    def label(self) -> str:
        """The reason by which dropped documents are counted."""
        return f"{self.rule}: {self.reason}" if self.reason else self.rule


EMPTY = Decision(None, EMPTY_DOCUMENTS)
Decide = Callable[[Document], Decision]  # called with all documents of a unit that are not empty, in order
Record = Callable[[Document, Decision], None]


# Options of a source that do not affect its documents, or that are recorded with the rules.
UNDESCRIBED = ("max_bad_fraction", "max_skipped_fraction", "partial", "unit_bytes", "fields")


class Reader(ABC):
    """One kind of source.

    Attributes:
        takes: Meaning of `input`: paths, the name of a data set, or nothing.
        patterns: Names of its files in folders. Case does not matter.
        limits_skipped: Whether many files of other names in a folder are an error.
        divides: Whether a large file that is not compressed gives several units.
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
        """The units of these inputs of a source, the same on every machine. option: the option that gave the inputs.

        Raises UserError, or MissingPath, if inputs are missing.
        """
        files = self.files(source, inputs, option)
        return grouped(files, self.divides, source.unit_bytes)

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
        """List the content of these inputs: files to read, and files skipped because of their names."""
        return list_inputs(inputs, *self.patterns, option=option)

    @abstractmethod
    def read(self, source: "Source", unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        """The documents of a unit with one input, empty ones included. Counts the records that it skips.

        Raises FileNotFoundError, or UserError for a corrupted file.
        """

    def describe(self, source: "Source") -> dict[str, Any]:
        """Further facts that decide the documents, for the index."""
        return {}


@dataclass(frozen=True)
class Source:
    """The source of documents.

    Attributes:
        kind: Name in SOURCES.
        inputs: Paths and URLs, one data set name (hub), nothing (python).
        subset: Configuration of a hub data set, such as `en`.
        max_documents: Number of kept documents after which reading stops; None reads all.
        max_record_bytes: Longer lines, files and texts are skipped.
        text_field: Field of records that has the text.
        split: Split of a hub data set.
        validation: Paths and URLs of the validation split, which come first; empty: it is a share of the documents.
        max_bad_fraction: Fraction of the records of a unit, and of all, that may be bad or too long. FEW_BAD always may.
        max_skipped_fraction: Fraction of the files or bytes of a folder that may be skipped because of their names, and of
            the samples in tars that may have no text. FEW_BAD samples always may.
        partial: Whether a folder may lack files of a numbered set.
        unit_bytes: Size of units; None: UNIT_BYTES.
        fields: Fields of records that cleaning rules need, such as `license`; one inside of others is `metadata.license`.
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
            raise UserError(f"source {self.kind!r} is unknown: {choose_one(self.kind, SOURCES)}")
        reader = self.reader
        if reader.takes == "nothing" and self.inputs:
            raise UserError(f"source {self.kind} takes no `input`, got {list(self.inputs)}: remove it or name another source")
        if reader.takes != "nothing" and not self.inputs:
            raise UserError(f"source {self.kind} needs `input`: give at least one")
        if reader.takes == "name" and len(self.inputs) != 1:
            raise UserError(f"source {self.kind} takes one data set name as `input`, got {list(self.inputs)}")
        for name, value, default in (("subset", self.subset, None), ("split", self.split, "train")):
            if value != default and not reader.has_subsets:
                raise UserError(f"{name} {value!r} belongs to `source` hub, got `source` {self.kind}: remove it")
        if self.text_field != "text" and not reader.has_fields:
            raise UserError(f"text_field {self.text_field!r}: the documents of `source` {self.kind} have no fields: remove it")
        if self.fields and not reader.has_fields:
            raise UserError(
                f"the documents of `source` {self.kind} have no fields, but a rule reads {self.fields[0]}: remove it"
            )
        if self.validation and reader.takes != "paths":
            raise UserError(f"validation_input {' '.join(self.validation)}: `source` {self.kind} has no files: remove it")
        if self.validation and self.max_documents is not None:
            raise UserError("max_documents and `validation_input`: give one of them, or fewer files")

    @property
    def reader(self) -> Reader:
        """The reader of this kind."""
        return SOURCES[self.kind].load()()

    def units(self) -> list[Unit]:
        """The units of all inputs. With max_documents there is one, since only a pass in order knows where to stop.

        Those of the validation split come first, so that of equal documents it has the one that is kept.
        """
        units = self.reader.units(self, self.inputs)
        if self.validation:
            held_out = self.reader.units(self, self.validation, "validation_input")
            files = [dict.fromkeys(name for unit in split for name in unit.inputs) for split in (units, held_out)]
            check_distinct([*files[0], *files[1]], "validation_input")  # a file of one split may be in several units
            return [replace(unit, split="validation") for unit in held_out] + [replace(unit, split="train") for unit in units]
        if self.max_documents is None or len(units) == 1:
            return units
        whole = tuple(dict.fromkeys(name for unit in units for name in unit.inputs))
        versions = {name: version for unit in units for name, version in zip(unit.inputs, unit.versions, strict=False)}
        return [Unit(whole, sum(unit.num_bytes for unit in units), versions=tuple(versions.values()))]

    @path_errors()
    def skipped_files(self) -> dict[str, SkippedFiles]:
        """Return the files skipped because of their names, by input. Inputs without skipped files are not included.

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
        """Which of `inputs` a unit's input belongs to, as it is given there; the kind of a source without inputs."""
        inputs = self.inputs + self.validation
        if len(inputs) == 1:
            return inputs[0]
        return next((given for given in inputs if relative(name, given) is not None), self.kind)

    def describe(self) -> dict[str, Any]:
        """The record of the source in the index: the fields that decide its documents and differ from their defaults."""
        described: dict[str, Any] = {}
        for option in fields(self):
            value = getattr(self, option.name)
            if value != option.default and option.name not in UNDESCRIBED:
                described[option.name] = list(value) if isinstance(value, tuple) else value
        return described | self.reader.describe(self)


MISSING = object()  # Stands for a missing field.


def documents_of(records: Iterable[tuple[str, Any]], source: Source, counts: RecordCounts) -> Iterator[Document]:
    """Yield the documents of records. The field `url` may say where a document was found. A null text is an empty document.

    Records without text, or with too much text, are counted.
    """
    for place, record in records:
        text = record.get(source.text_field, MISSING) if isinstance(record, dict) else MISSING
        if text is None:
            yield document_of("", place, record, source)
        elif not isinstance(text, str):
            counts.add_bad(place, f"`{source.text_field}` is missing or not a string")
        elif 4 * len(text) > source.max_record_bytes < len(text.encode()):
            counts.add_too_long(place)
        else:
            yield document_of(text, place, record, source)


def document_of(text: str, place: str, record: Any, source: Source) -> Document:
    """The document of a text, with the URL and the fields of its record."""
    url = record.get("url") if isinstance(record, dict) else None
    fields = {path: value_of(record, path) for path in source.fields} if source.fields else {}
    return Document(text, place, url if isinstance(url, str) else "", "", {}, fields)


def value_of(record: Any, path: str) -> Any:
    """Return the value at a path such as `metadata.license` in a record; None if there is none. A name may contain dots."""
    if isinstance(record, dict) and path in record:
        return record[path]
    for name in path.split("."):
        record = record.get(name) if isinstance(record, dict) else None
    return record


def keep(document: Document) -> Decision:
    """The decision of no rule."""
    return Decision(document.text)


def read_unit(
    source: Source, unit: Unit, counts: CorpusCounts, decide: Decide = keep, record: Record | None = None
) -> Iterator[Document]:
    """The documents of a unit that are kept, in a fixed order.

    Args:
        source: The source.
        unit: One of its units.
        counts: Counts to update. Bad and too long records and dropped documents are counted, not fatal.
        decide: Decides about each document that is not empty, in order; by default all are kept.
        record: Called with each document and the decision about it, in order.

    Raises:
        FileNotFoundError: A path does not exist.
        UserError: A file is corrupted, or too many records are bad.
    """
    num_kept = 0
    for name in unit.inputs:
        given = printable(source.input_of(name))
        num_read = 0
        dropped = Counter[str]()
        num_bad = counts.bad
        num_too_long = counts.too_long
        num_without_text = counts.without_text
        try:
            for document in source.reader.read(source, replace(unit, inputs=(name,)), counts):
                num_read += 1
                text = document.text
                decision = EMPTY if not text or text.isspace() else decide(document)
                if record is not None:
                    record(document, decision)
                if decision.text is None:
                    dropped[decision.label] += 1
                    continue
                num_kept += 1
                encoded = (decision.content, decision.digest)
                place = printable(document.place)
                yield Document(decision.text, place, document.url, given, decision.scores, {}, *encoded)
                if num_kept == source.max_documents:
                    return
        finally:
            skipped = {
                BAD: counts.bad - num_bad,
                TOO_LONG: counts.too_long - num_too_long,
                WITHOUT_TEXT: counts.without_text - num_without_text,
            }
            dropped += Counter(skipped)
            num_read += sum(skipped.values())
            counts.inputs.setdefault(given, DocumentCounts()).add(DocumentCounts(num_read, dropped=sort_reasons(dropped)))
    check_bad(source, counts)


def read_documents(source: Source, counts: CorpusCounts) -> Iterator[Document]:
    """All documents of all units but those of a separate validation split.

    Raises:
        UserError: No file matches, or the source has no documents.
    """
    for unit in source.units():
        if unit.split != "validation":
            yield from read_unit(source, unit, counts)
    check_found(source, counts)


def check_bad(source: Source, counts: CorpusCounts) -> None:
    """Raise UserError if too many of the records of a pass gave no document."""
    num_read = counts.total.read
    check_bad_records(counts, num_read, source.max_bad_fraction, "; what is finished stays")
    if counts.without_text > max(FEW_BAD, source.max_skipped_fraction * num_read):
        raise UserError(
            f"of {num_read:,} samples {counts.without_text:,} have no member named .txt or .json, more than "
            f"`max_skipped_fraction` {source.max_skipped_fraction:g}; the first: {counts.first_without_text}. Rename the "
            "members with text, or raise `max_skipped_fraction`, and give the same command again; what is finished stays"
        )


def check_found(source: Source, counts: CorpusCounts) -> None:
    """Raise UserError if a pass over all of a source has found no document."""
    total = counts.total
    if total.kept == 0:
        empty = total.dropped.get(EMPTY_DOCUMENTS, 0)
        without_text = total.dropped.get(WITHOUT_TEXT, 0)
        dropped = sum(total.dropped.values()) - empty - without_text - counts.skipped
        first = ""
        if counts.bad:
            first += f", first: {counts.bad_examples[0]}"
        if without_text:
            first += f", {without_text} without text, first: {counts.first_without_text}"
        raise UserError(
            f"source {source.kind} {' '.join(source.inputs)}: no documents found ({empty} empty, {counts.too_long} "
            f"longer than `max_record_bytes` {source.max_record_bytes:,}, {dropped} dropped, {counts.bad} bad"
            f"{first}): check `source` and `input`"
        )
