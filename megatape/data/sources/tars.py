"""WebDataset tars of text."""

import hashlib
from collections.abc import Iterator
from tarfile import ReadError
from typing import BinaryIO

import orjson

from megatape.data.io.records import BYTE_ORDER_MARK, CORRUPTED, RecordCounts, corrupted, unpacked
from megatape.data.io.remote import open_file
from megatape.data.io.tar import read_members
from megatape.data.sources.source import Document, Reader, Source, document_of, documents_of
from megatape.data.sources.units import Unit

TEXT, RECORD = "txt", "json"
FAULTS: tuple[type[Exception], ...] = (ReadError, *CORRUPTED)


class Tars(Reader):
    """Files .tar, .tar.gz and .tar.zst. Members whose names are equal up to the first dot are a sample, which is one document.

    Its text is the member `.txt`, or else a field of the member `.json`. Other members are ignored.
    """

    patterns = ("*.tar", "*.tar.gz", "*.tar.zst")
    has_fields = True

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        for name in unit.inputs:
            try:
                with open_file(name) as stored:
                    read_before = counts.read_bytes
                    for sample in _samples(unpacked(stored, name), name, source, counts):
                        counts.read_bytes = read_before + stored.tell()
                        yield from _documents(sample, name, source, counts)
            except FAULTS as error:
                raise corrupted(name, "tar", error) from error


def _samples(file: BinaryIO, archive: str, source: Source, counts: RecordCounts) -> Iterator[dict[str, tuple[str, bytes]]]:
    """Name and content of `.txt` and `.json` of each sample. Counts members that cannot be used."""
    key, sample = "", dict[str, tuple[str, bytes]]()
    names: set[bytes] = set()  # hashed, of which a million take 100 MB
    for member in read_members(file, lambda name: _parts(name)[1] in (TEXT, RECORD), source.max_record_bytes):
        place = f"{archive}:{member.name}"
        stem, extension = _parts(member.name)
        if member.fault:
            counts.add_bad(place, member.fault)
        if member.fault or extension not in (TEXT, RECORD):
            continue
        if stem != key:
            if sample:
                yield sample
            key, sample = stem, {}
        digest = hashlib.blake2b(member.name.encode("utf-8", "surrogateescape"), digest_size=16).digest()
        if digest in names:
            counts.add_bad(place, "a second member of this name")
        elif member.content is None:
            counts.add_too_long(place)
        else:
            sample[extension] = member.name, member.content.removeprefix(BYTE_ORDER_MARK)
        names.add(digest)
    if sample:
        yield sample


def _parts(name: str) -> tuple[str, str]:
    """What a sample's members have in common, and the extension."""
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.partition(".")
    return f"{folder}{slash}{stem}", extension.lower()


def _documents(sample: dict[str, tuple[str, bytes]], archive: str, source: Source, counts: RecordCounts) -> Iterator[Document]:
    """The document of a sample; none if it has no text, which is counted."""
    name, content = sample.get(TEXT) or sample[RECORD]
    place = f"{archive}:{name}"
    try:
        record = orjson.loads(sample[RECORD][1]) if RECORD in sample else {}
        if TEXT in sample:
            yield document_of(content.decode(), place, record, source)
        else:
            yield from documents_of([(place, record)], source, counts)
    except (UnicodeDecodeError, orjson.JSONDecodeError) as error:
        counts.add_bad(place, f"malformed text or JSON ({error})")
