"""What a source of documents is, in which units it is read, and what is counted on the way.

A new kind of source is a file with a subclass of Reader and a line in SOURCES (megatape/registry.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

from megatape.data.io.records import NUM_BAD_EXAMPLES, RecordCounts, check_max_record_bytes, is_packed
from megatape.data.io.remote import file_states, relative
from megatape.data.shards.index import Tally
from megatape.data.sources.limits import MAX_BAD_FRACTION, MAX_RECORD_BYTES
from megatape.errors import UserError
from megatape.registry import SOURCES

UNIT_BYTES = 64 * 2**20  # of input: about a minute of work for one core
MAX_UNITS = 2**20  # of 64 TiB: a file or server that announces more is no source


@dataclass
class CorpusCounts(RecordCounts):
    """What a pass over a source has read so far, and what it skipped. documents: to be written; text_bytes: of these, in UTF-8.

    dropped: documents that were left out, by reason. inputs: the same for each --input. What is written of them is counted by
    who writes it.
    """

    documents: int = 0
    text_bytes: int = 0
    empty: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, Tally] = field(default_factory=dict)

    def add(self, other: "CorpusCounts") -> None:
        """Add what a pass over later documents has counted."""
        self.documents += other.documents
        self.text_bytes += other.text_bytes
        self.empty += other.empty
        for reason, count in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.bad += other.bad
        self.bad_examples = (self.bad_examples + other.bad_examples)[:NUM_BAD_EXAMPLES]
        self.too_long += other.too_long
        self.first_too_long = self.first_too_long or other.first_too_long
        self.read_bytes += other.read_bytes
        for name, tally in other.inputs.items():
            self.inputs.setdefault(name, Tally()).add(tally)

    def recorded(self) -> dict[str, int]:
        """What the index keeps: documents read are those written and those skipped for one of the reasons."""
        skipped = {
            "empty documents": self.empty,
            **dict(sorted(self.dropped.items())),
            "bad records": self.bad,
            "records too long to read": self.too_long,
        }
        return {name: count for name, count in skipped.items() if count}


class Document(NamedTuple):
    """A document of a source.

    place: where in the source it is, such as `file:line`, the same on every machine that gives the same inputs. url: where the
    source says that it was found; empty if it does not say. input: which of Source.inputs it belongs to, as `read_unit` says
    """

    text: str
    place: str
    url: str = ""
    input: str = ""


@dataclass(frozen=True)
class Unit:
    """A part of a source that one process reads in one go. All documents of a source are those of its units, in order.

    inputs      what to read, in order
    num_bytes   of input, which measures progress; 0 if unknown
    begin, end  which bytes of the only input: a line or row group belongs to the unit in which it begins. None: to the end.
                Of a hub data set, which of its files
    split       of all its documents; empty: their text decides
    versions    of the inputs when the source was divided, as remote.FileState has them; empty: unknown
    """

    inputs: tuple[str, ...]
    num_bytes: int
    begin: int = 0
    end: int | None = None
    split: str = ""
    versions: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f" and {len(self.inputs) - 1:,} more" if len(self.inputs) > 1 else ""
        return f"{self.inputs[0]}{more}{f', from byte {self.begin:,} on' if self.begin else ''}"

    def difference(self, other: "Unit") -> str:
        """The first thing in which another unit differs, with both values."""
        if self.inputs == other.inputs:
            for name, mine, its in zip(self.inputs, self.versions, other.versions, strict=False):
                if mine != its:
                    return f"{name} of version {mine}, now {its}"
        return f"{self!r}, now {other!r}"

    def check_unchanged(self) -> None:
        """Raise UserError if a file is another than when the source was divided into units, by its version."""
        if not self.versions:
            return
        now = replace(self, versions=tuple(state.version for state in file_states(self.inputs)))
        if now != self:
            raise UserError(
                f"an input has changed while it was prepared: {self.difference(now)}. Give the same command again when it no "
                "longer changes"
            )


class Reader(ABC):
    """One kind of source.

    takes: what `input` names: paths, the name of a data set, or nothing. has_subsets: whether `subset` and `split` apply.
    has_fields: whether `text_field` applies.
    """

    takes: ClassVar[Literal["paths", "name", "nothing"]] = "paths"
    has_subsets: ClassVar[bool] = False
    has_fields: ClassVar[bool] = False

    @abstractmethod
    def units(self, source: "Source", inputs: tuple[str, ...], option: str = "input") -> list[Unit]:
        """The units of these inputs of a source, the same on every machine. option: which one gave the inputs.

        Raises UserError, or MissingPath, if inputs are missing.
        """

    @abstractmethod
    def read(self, source: "Source", unit: Unit, counts: CorpusCounts) -> Iterator[Document]:
        """The documents of a unit, empty ones included. Counts what it skips. `read_unit` asks for one of its inputs at a time.

        Raises FileNotFoundError, or UserError for a corrupted file.
        """

    def describe(self) -> dict[str, str]:
        """What decides the documents beside `inputs`, for the index."""
        return {}


@dataclass(frozen=True)
class Source:
    """The source of documents.

    kind              one of SOURCES
    inputs            paths and URLs, one data set name (hub), nothing (python)
    subset            configuration of a hub data set, such as `en`
    max_documents     stop after this many documents; None reads all
    max_record_bytes  skip longer lines, files and texts
    text_field        of records, which has the text
    split             of a hub data set
    validation        paths and URLs of the validation split, which come first; empty: a share of the documents is that split
    max_bad_fraction  of the records of a unit, and of all: more that are bad or too long are an error. FEW_BAD never are
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

    def __post_init__(self) -> None:
        if self.kind not in SOURCES:
            raise UserError(f"source {self.kind!r} is unknown: choose one of {', '.join(SOURCES)}")
        reader = self.reader
        if reader.takes == "nothing" and self.inputs:
            raise UserError(f"source {self.kind} takes no `input`, got {list(self.inputs)}: remove it or name another source")
        if reader.takes != "nothing" and not self.inputs:
            raise UserError(f"source {self.kind} needs `input`: give at least one")
        if reader.takes == "name" and len(self.inputs) != 1:
            raise UserError(f"source {self.kind} takes one data set name as `input`, got {list(self.inputs)}")
        if self.subset is not None and not reader.has_subsets:
            raise UserError(f"subset {self.subset!r} belongs to `source` hub, got `source` {self.kind}: remove it")
        if self.split != "train" and not reader.has_subsets:
            raise UserError(f"split {self.split!r} belongs to `source` hub, got `source` {self.kind}: remove it")
        if self.text_field != "text" and not reader.has_fields:
            raise UserError(f"text_field {self.text_field!r}: the documents of `source` {self.kind} have no fields: remove it")
        if self.validation and reader.takes != "paths":
            raise UserError(f"validation_input {' '.join(self.validation)}: `source` {self.kind} has no files: remove it")
        if self.validation and self.max_documents is not None:
            raise UserError("max_documents and `validation_input`: give one of them, or fewer files")
        if not 0 <= self.max_bad_fraction <= 1:
            raise UserError(f"max_bad_fraction is {self.max_bad_fraction}: give a fraction between 0 and 1, such as 0.01")
        if self.max_documents is not None and self.max_documents < 1:
            raise UserError(f"max_documents is {self.max_documents}: give at least 1, or leave it out to read all")
        check_max_record_bytes(self.max_record_bytes)

    @property
    def reader(self) -> Reader:
        """What reads this kind."""
        reader: Reader = SOURCES[self.kind].load()()
        return reader

    def units(self) -> list[Unit]:
        """See Reader.units. With max_documents there is one unit, since only a pass in order knows where to stop.

        Those of the validation split come first, so that of equal documents it has the one that stays.
        """
        units = self.reader.units(self, self.inputs)
        if self.validation:
            held_out = self.reader.units(self, self.validation, "validation_input")
            return [replace(unit, split="validation") for unit in held_out] + [replace(unit, split="train") for unit in units]
        if self.max_documents is None or len(units) == 1:
            return units
        whole = tuple(dict.fromkeys(name for unit in units for name in unit.inputs))
        versions = {name: version for unit in units for name, version in zip(unit.inputs, unit.versions, strict=False)}
        return [Unit(whole, sum(unit.num_bytes for unit in units), versions=tuple(versions.values()))]

    def input_of(self, name: str) -> str:
        """Which of `inputs` a unit's input belongs to, as it is given there; the kind of a source without inputs."""
        inputs = self.inputs + self.validation
        if len(inputs) == 1:
            return inputs[0]
        return next((given for given in inputs if relative(name, given) is not None), self.kind)

    def describe(self) -> dict[str, Any]:
        """What the index records about the source."""
        description: dict[str, Any] = {"kind": self.kind}
        if self.inputs:
            description["inputs"] = list(self.inputs)
        if self.subset is not None:
            description["subset"] = self.subset
        if self.max_documents is not None:
            description["max_documents"] = self.max_documents
        if self.max_record_bytes != MAX_RECORD_BYTES:
            description["max_record_bytes"] = self.max_record_bytes
        if self.text_field != "text":
            description["text_field"] = self.text_field
        if self.split != "train":
            description["split"] = self.split
        if self.validation:
            description["validation"] = list(self.validation)
        return description | self.reader.describe()


def document_of(record: Any, place: str, source: Source, counts: CorpusCounts) -> Document | None:
    """The document of a record, whose field `url` may say where it was found.

    None: it has no text, or too long a one, and was counted.
    """
    text = record.get(source.text_field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        counts.add_bad(place, f"`{source.text_field}` is missing or not a string")
        return None
    if 4 * len(text) > source.max_record_bytes < len(text.encode()):
        counts.add_too_long(place)
        return None
    url = record.get("url")
    return Document(text, place, url if isinstance(url, str) else "")


def grouped(files: Iterable[str], divided: bool = False) -> list[Unit]:
    """Units of whole files, a few small ones in one, up to UNIT_BYTES. divided: larger files, of lines, give several units."""
    units: list[Unit] = []
    group: list[tuple[str, str]] = []  # files and versions
    size = 0

    def close() -> None:
        nonlocal size
        if group:
            names, versions = zip(*group, strict=True)
            units.append(Unit(names, size, versions=versions))
        group.clear()
        size = 0

    files = list(files)
    for file, (file_bytes, version) in zip(files, file_states(files), strict=True):
        if size + file_bytes > UNIT_BYTES:
            close()
        if divided and file_bytes > UNIT_BYTES and not is_packed(file):
            if len(units) + file_bytes // UNIT_BYTES > MAX_UNITS:
                raise UserError(
                    f"{file}: with its {file_bytes:,} bytes the source has more than {MAX_UNITS:,} units of {UNIT_BYTES:,}: "
                    "check the length that the file system or the server announces, and prepare a larger source in parts"
                )
            for start in range(0, file_bytes, UNIT_BYTES):
                end = min(start + UNIT_BYTES, file_bytes)
                units.append(Unit((file,), end - start, start, end, versions=(version,)))
            continue
        group.append((file, version))
        size += file_bytes
    close()
    return units
