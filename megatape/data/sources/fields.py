"""Converts records with fields, such as lines of JSON, to documents."""

from collections.abc import Iterable, Iterator
from typing import Any

from megatape.data.counts import RecordCounts
from megatape.data.io.records import Record
from megatape.data.sources.document import Document
from megatape.data.sources.source import Source

# Stands for a missing field, because None is a null text.
MISSING = object()


def documents_of(records: Iterable[Record], source: Source, counts: RecordCounts) -> Iterator[Document]:
    """Yield the documents of records.

    A null text is an empty document. Records without text, or with too much text, are counted and skipped.

    Args:
        records: Records to convert.
        source: Source of the records. It names the text field.
        counts: Counts to update.
    """
    for location, record in records:
        text = _value_or_missing(record, source.text_field)
        if text is None:
            yield document_of("", location, record, source)
        elif not isinstance(text, str):
            counts.add_bad(location, f"`{source.text_field}` is missing or not a string")
        elif is_too_long(text, source.max_record_bytes):
            counts.add_too_long(location)
        else:
            yield document_of(text, location, record, source)


def is_too_long(text: str, max_bytes: int) -> bool:
    """Whether a text takes more than `max_bytes` in UTF-8, which has up to four bytes per character."""
    return 4 * len(text) > max_bytes and len(text.encode()) > max_bytes


def document_of(text: str, location: str, record: Any, source: Source) -> Document:
    """Return a document with the fields of its record. The field `url` is its address."""
    url = ""
    if isinstance(record, dict):
        address = record.get("url")
        if isinstance(address, str):
            url = address
    if not source.fields:
        return Document(text, location, url)
    fields = {path: value_of(record, path) for path in source.fields}
    return Document(text, location, url, fields=fields)


def value_of(record: Any, path: str) -> Any:
    """Return the value at a path such as `metadata.license`, or None if it is missing. Field names may contain dots."""
    value = _value_or_missing(record, path)
    if value is MISSING:
        return None
    return value


def _value_or_missing(record: Any, path: str) -> Any:
    if isinstance(record, dict) and path in record:
        return record[path]
    for name in path.split("."):
        if not isinstance(record, dict) or name not in record:
            return MISSING
        record = record[name]
    return record
