"""WebDataset tars with text."""

import hashlib
from collections.abc import Iterator
from tarfile import ReadError
from typing import BinaryIO

import orjson

from megatape.data.counts import RecordCounts
from megatape.data.io.compression import CORRUPTED, compressed_patterns, corruption_error, decompressed
from megatape.data.io.files import open_file
from megatape.data.io.records import BYTE_ORDER_MARK, parse_json_record
from megatape.data.io.tar import read_members
from megatape.data.sources.document import Document
from megatape.data.sources.fields import document_of, documents_of
from megatape.data.sources.source import Reader, Source
from megatape.data.sources.units import Unit

TEXT = "txt"
RECORD = "json"
FAULTS: tuple[type[Exception], ...] = (ReadError, *CORRUPTED)
# Name and content of the members `.txt` and `.json`.
Sample = dict[str, tuple[str, bytes]]


class Tars(Reader):
    """Tar files, compressed or not. Consecutive members with the same key are a sample, which is one document.

    The key is the name up to its first dot if the rest is a known extension, .txt or .json (WebDataset's rule). If a name with
    more dots ends in a known extension, such as `2501.00000.txt`, the key is the name up to that extension. The text is the
    member `.txt`, or else a field of the member `.json`. Other members are ignored, but samples without text are counted.
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
            except FAULTS as error:
                raise corruption_error(name, "tar", error) from error


class _Names:
    """Names and keys of the members of an archive, hashed: a million members with text take 200 MB."""

    def __init__(self) -> None:
        self._names: set[bytes] = set()
        # Keys of members with text or a record.
        self._keys: set[bytes] = set()
        # Other members: hash of one key -> hash of the other key, name.
        self._others: dict[bytes, tuple[bytes, str]] = {}

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
        """Remember a member without text. The key of its sample is its name up to the first or the last dot."""
        folder, slash, file = name.rpartition("/")
        if file.startswith("."):
            # Hidden files belong to no sample.
            return
        up_to_first_dot = file.partition(".")[0]
        up_to_last_dot = file.rpartition(".")[0]
        first = _digest(f"{folder}{slash}{up_to_first_dot}")
        last = _digest(f"{folder}{slash}{up_to_last_dot}")
        self._others.setdefault(first, (last, name))

    def without_text(self) -> Iterator[str]:
        """Yield the name of one member of each sample without text. Call this after adding all members."""
        for first, (last, name) in self._others.items():
            if first not in self._keys and last not in self._keys:
                yield name


def _samples(file: BinaryIO, archive: str, source: Source, counts: RecordCounts) -> Iterator[Sample]:
    """Yield the samples with text or a record. Counts members that cannot be used, and samples without text."""
    key = ""
    sample: Sample = {}
    names = _Names()
    for member in read_members(file, lambda name: bool(_parts(name)[1]), source.max_record_bytes):
        place = f"{archive}:{member.name}"
        stem, extension = _parts(member.name)
        if member.fault:
            counts.add_bad(place, member.fault)
            continue
        if not extension:
            names.add_other(member.name)
            continue
        if not names.add(member.name):
            counts.add_bad(place, "a second member of this name")
            continue
        if stem != key:
            if sample:
                yield sample
            key = stem
            sample = {}
            if not names.add_key(stem):
                key = ""
                counts.add_bad(place, "apart from the other members of its sample: pack the archive again, sorted by name")
                continue
        if member.content is None:
            counts.add_too_long(place)
        else:
            sample[extension] = member.name, member.content.removeprefix(BYTE_ORDER_MARK)
    if sample:
        yield sample
    for name in names.without_text():
        counts.add_without_text(f"{archive}:{name}")


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _parts(name: str) -> tuple[str, str]:
    """Return the key and the extension of a member; the extension is empty unless it is known."""
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.partition(".")
    if extension.lower() in (TEXT, RECORD):
        return f"{folder}{slash}{stem}", extension.lower()
    stem, dot, extension = file.rpartition(".")
    if dot and not file.startswith(".") and extension.lower() in (TEXT, RECORD):
        return f"{folder}{slash}{stem}", extension.lower()
    return name, ""


def _documents(sample: Sample, archive: str, source: Source, counts: RecordCounts) -> Iterator[Document]:
    """Yield the document of a sample, or nothing if it has no text, which is counted."""
    name, content = sample.get(TEXT) or sample[RECORD]
    place = f"{archive}:{name}"
    try:
        record = {}
        if RECORD in sample:
            record = parse_json_record(sample[RECORD][1])
        if TEXT in sample:
            yield document_of(content.decode(), place, record, source)
        else:
            yield from documents_of([(place, record)], source, counts)
    except (UnicodeDecodeError, orjson.JSONDecodeError) as error:
        counts.add_bad(place, f"malformed text or JSON ({error})")
