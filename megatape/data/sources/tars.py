"""Reads WebDataset tars with text."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from tarfile import ReadError
from typing import BinaryIO, NamedTuple

import orjson

from megatape.data.counts import RecordCounts
from megatape.data.io.compression import CORRUPTED, compressed_patterns, corruption_error, decompressed
from megatape.data.io.files import open_file
from megatape.data.io.records import BYTE_ORDER_MARK, Record, parse_json_record
from megatape.data.io.tar import read_members
from megatape.data.sources.document import Document
from megatape.data.sources.fields import document_of, documents_of
from megatape.data.sources.source import Reader, Source
from megatape.data.sources.units import Unit

# Extensions of the members that are read.
TEXT = "txt"
RECORD = "json"
# Errors raised for corrupted archives.
CORRUPTED_TAR: tuple[type[Exception], ...] = (ReadError, *CORRUPTED)


class MemberName(NamedTuple):
    """Name of a member, split by WebDataset's rule.

    Attributes:
        key: Key of its sample; the whole name if it has no known extension.
        extension: TEXT or RECORD; None if it has another extension.
    """

    key: str
    extension: str | None


class SampleMember(NamedTuple):
    """Member of a sample, with its content without byte order mark."""

    name: str
    content: bytes


@dataclass
class Sample:
    """Members of a sample with a known extension."""

    text: SampleMember | None = None
    record: SampleMember | None = None

    @property
    def is_empty(self) -> bool:
        return self.text is None and self.record is None


class Tars(Reader):
    """Tar files, compressed or not. Consecutive members with the same key are a sample, which is one document.

    The key is the name up to its first dot if a known extension follows, .txt or .json (WebDataset's rule). If a name with more
    dots ends in a known extension, such as `2501.00000.txt`, the key is the name up to that extension. The text is the member
    `.txt`, or else a field of the member `.json`. Other members are ignored, but samples without text are counted.
    """

    patterns = ("*.tar", *compressed_patterns(".tar"))
    has_fields = True

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        for name in unit.inputs:
            try:
                with open_file(name) as stored:
                    read_before = counts.read_bytes
                    for sample in _samples(decompressed(stored, name, counts), name, source, counts):
                        counts.read_bytes = read_before + stored.tell()
                        yield from _documents(sample, name, source, counts)
            except CORRUPTED_TAR as error:
                raise corruption_error(name, "tar", error) from error


class _OtherMember(NamedTuple):
    """Member without text, with the hash of its other possible key."""

    other_key: bytes
    name: str


class _Names:
    """Names and keys of an archive's members, hashed. A million members with text take 200 MB."""

    def __init__(self) -> None:
        self._names: set[bytes] = set()
        # Keys of samples with text or a record.
        self._keys: set[bytes] = set()
        # Other members, by the hash of one possible key.
        self._others: dict[bytes, _OtherMember] = {}

    def add(self, name: str) -> bool:
        """Remember the name of a member. Returns whether it is new."""
        digest = _digest(name)
        is_new = digest not in self._names
        self._names.add(digest)
        return is_new

    def add_key(self, key: str) -> bool:
        """Remember the key of a sample. Returns whether it is new."""
        digest = _digest(key)
        is_new = digest not in self._keys
        self._keys.add(digest)
        return is_new

    def add_other(self, name: str) -> None:
        """Remember a member without text. Its sample has the key up to the first or the last dot of the name."""
        folder, slash, file = name.rpartition("/")
        if file.startswith("."):
            # Hidden files belong to no sample.
            return
        up_to_first_dot = file.partition(".")[0]
        up_to_last_dot = file.rpartition(".")[0]
        first = _digest(f"{folder}{slash}{up_to_first_dot}")
        last = _digest(f"{folder}{slash}{up_to_last_dot}")
        self._others.setdefault(first, _OtherMember(last, name))

    def without_text(self) -> Iterator[str]:
        """Yield one member's name for each sample without text. Call this after adding all members."""
        for key, member in self._others.items():
            if key not in self._keys and member.other_key not in self._keys:
                yield member.name


def _samples(file: BinaryIO, archive: str, source: Source, counts: RecordCounts) -> Iterator[Sample]:
    """Yield the samples with text or a record. Counts unusable members, and samples without text."""
    sample_key: str | None = None
    sample = Sample()
    names = _Names()
    for member in read_members(file, _has_document, source.max_record_bytes):
        location = f"{archive}:{member.name}"
        key, extension = _split_name(member.name)
        if member.reason is not None:
            counts.add_bad(location, member.reason)
            continue
        if extension is None:
            names.add_other(member.name)
            continue
        if not names.add(member.name):
            counts.add_bad(location, "a second member of this name")
            continue
        if key != sample_key:
            if not sample.is_empty:
                yield sample
            sample_key = key
            sample = Sample()
            if not names.add_key(key):
                sample_key = None
                counts.add_bad(location, "apart from the other members of its sample: pack the archive again, sorted by name")
                continue
        if member.content is None:
            counts.add_too_long(location)
            continue
        sample_member = SampleMember(member.name, member.content.removeprefix(BYTE_ORDER_MARK))
        if extension == TEXT:
            sample.text = sample_member
        else:
            sample.record = sample_member
    if not sample.is_empty:
        yield sample
    for name in names.without_text():
        counts.add_without_text(f"{archive}:{name}")


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _has_document(name: str) -> bool:
    """Whether a member has text or a record, judging by its name."""
    return _split_name(name).extension is not None


def _split_name(name: str) -> MemberName:
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.partition(".")
    if extension.lower() in (TEXT, RECORD):
        return MemberName(f"{folder}{slash}{stem}", extension.lower())
    stem, dot, extension = file.rpartition(".")
    if dot and not file.startswith(".") and extension.lower() in (TEXT, RECORD):
        return MemberName(f"{folder}{slash}{stem}", extension.lower())
    return MemberName(name, None)


def _documents(sample: Sample, archive: str, source: Source, counts: RecordCounts) -> Iterator[Document]:
    """Yield the document of a sample. A sample without text is counted instead."""
    member = sample.text or sample.record
    assert member is not None
    location = f"{archive}:{member.name}"
    try:
        record = {}
        if sample.record is not None:
            record = parse_json_record(sample.record.content)
        if sample.text is not None:
            yield document_of(sample.text.content.decode(), location, record, source)
        else:
            yield from documents_of([Record(location, record)], source, counts)
    except (UnicodeDecodeError, orjson.JSONDecodeError) as error:
        counts.add_bad(location, f"malformed text or JSON ({error})")
