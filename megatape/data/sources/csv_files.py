"""Reads CSV and TSV files: a row with a column of text is a document."""

import csv
import io
from collections.abc import Iterator
from itertools import count
from typing import BinaryIO

from megatape.data.counts import RecordCounts
from megatape.data.io.compression import COMPRESSIONS, CORRUPTED, compressed_patterns, corruption_error, decompressed
from megatape.data.io.files import open_file, suffix
from megatape.data.io.records import Record
from megatape.data.sources.document import Document
from megatape.data.sources.fields import documents_of
from megatape.data.sources.source import Reader, Source
from megatape.data.sources.units import Unit
from megatape.errors import UserError, flag

TAB_SUFFIX = ".tsv"
MAX_COLUMNS = 2**16
# Maximum characters of a row, as a multiple of the maximum bytes of its text. This leaves room for other columns, quotation
# marks, and texts that are too long.
ROW_FACTOR = 4


class Csv(Reader):
    """Files named .csv (separated by commas) and .tsv (by tabs), compressed or not. The first row has the names of the columns.

    Values may be quoted, and quoted values may contain line breaks (RFC 4180). So a file cannot be divided.
    """

    patterns = ("*.csv", "*.tsv", *compressed_patterns(".csv"), *compressed_patterns(TAB_SUFFIX))
    has_fields = True

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        # The limit is one of the process. It counts characters.
        csv.field_size_limit(ROW_FACTOR * source.max_record_bytes)
        for name in unit.inputs:
            try:
                with open_file(name) as stored:
                    read_before = counts.read_bytes
                    records = _records(decompressed(stored, name, counts), name, source, counts)
                    for document in documents_of(records, source, counts):
                        counts.read_bytes = read_before + stored.tell()
                        yield document
                    counts.read_bytes = read_before + stored.tell()
            except CORRUPTED as error:
                raise corruption_error(name, COMPRESSIONS[suffix(name)], error) from error


def _records(file: BinaryIO, name: str, source: Source, counts: RecordCounts) -> Iterator[Record]:
    """Yield the rows of a file as records. Malformed rows, and those with a wrong number of columns, are bad records.

    Raises:
        UserError: The file has no column of text, or a row does not end.
    """
    # Invalid bytes become surrogates, so that the rest of the file can be read.
    text = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
    try:
        yield from _rows(text, name, source, counts)
    finally:
        # The caller closes the file.
        text.detach()


def _rows(text: io.TextIOWrapper, name: str, source: Source, counts: RecordCounts) -> Iterator[Record]:
    lines = _BoundedLines(text, ROW_FACTOR * source.max_record_bytes)
    rows = csv.reader(lines, delimiter=_delimiter(name), strict=True)
    columns: list[str] | None = None
    for number in count():
        location = f"{name}:row {number}"
        lines.begin_row()
        try:
            row = next(rows, None)
        except _RowTooLong as error:
            raise _endless(location, error) from None
        except csv.Error as error:
            if lines.has_ended:
                # Everything behind the quotation mark would be lost as one bad record.
                raise _endless(location, error) from None
            counts.add_bad(location, f"malformed CSV ({error})")
            continue
        if row is None:
            return
        if columns is None:
            columns = _checked_columns(row, name, source)
        elif len(row) == len(columns):
            values = dict(zip(columns, row, strict=True))
            if _is_unicode(values[source.text_field]):
                yield Record(location, values)
            else:
                counts.add_bad(location, "invalid UTF-8")
        elif row:
            counts.add_bad(location, f"{len(row):,} values for {len(columns):,} columns")


def _endless(location: str, error: Exception) -> UserError:
    return UserError(
        f"{location}: it does not end ({error}): a quotation mark is missing, or raise {flag('max_record_bytes')}. Correct the "
        "row, or leave the file out"
    )


def _delimiter(name: str) -> str:
    lower = name.lower()
    if suffix(name) in COMPRESSIONS:
        lower = lower.removesuffix(suffix(name))
    if lower.endswith(TAB_SUFFIX):
        return "\t"
    return ","


def _checked_columns(row: list[str], name: str, source: Source) -> list[str]:
    """Return the names of the columns. Raises UserError if none or several of them are the text's."""
    if row.count(source.text_field) != 1 or len(row) > MAX_COLUMNS:
        names = ", ".join(row[:20])
        raise UserError(
            f"{name}: the first row does not name one column `{source.text_field}` of text, but {names!r:.200}: leave the file "
            f"out, or give the {flag('text_field')} of all files"
        )
    return row


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _RowTooLong(Exception):
    """A row has too many characters."""


class _BoundedLines:
    """Lines of a text, until a row has too many characters.

    Attributes:
        has_ended: Whether the last line has been read.
    """

    def __init__(self, text: io.TextIOWrapper, max_characters: int) -> None:
        self.has_ended = False
        self._text = text
        self._max_characters = max_characters
        self._num_characters = 0

    def begin_row(self) -> None:
        self._num_characters = 0

    def __iter__(self) -> Iterator[str]:
        while True:
            line = self._text.readline(self._max_characters)
            if not line:
                self.has_ended = True
                return
            self._num_characters += len(line)
            if self._num_characters >= self._max_characters:
                raise _RowTooLong(f"more than {self._max_characters:,} characters")
            yield line
