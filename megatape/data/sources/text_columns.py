"""Documents in record batches of Arrow, each a row with a column of text."""

from collections.abc import Iterator
from typing import Any

from megatape.data.counts import RecordCounts
from megatape.data.sources.document import Document
from megatape.data.sources.fields import value_of
from megatape.data.sources.source import Source
from megatape.errors import UserError, flag

# Maximum number of columns named in a message.
NUM_SHOWN = 20


def check_text_column(name: str, schema: Any, source: Source) -> None:
    """Raise UserError unless a file of this schema has the source's column of text."""
    if not is_text(schema, source.text_field):
        raise UserError(
            f"{name}: the file has no column `{source.text_field}` of text, only {', '.join(schema.names[:NUM_SHOWN])}: "
            f"leave the file out, or give the {flag('text_field')} of all files"
        )


def is_text(schema: Any, column: str) -> bool:
    """Whether exactly one column has this name, and contains text or binary strings."""
    from pyarrow import types

    if schema.names.count(column) != 1:
        return False
    kind = schema.field(column).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def documents_of_rows(batch: Any, location: str, first: int, source: Source, counts: RecordCounts) -> Iterator[Document]:
    """Yield the documents in a batch, whose rows are numbered from `first` on. A null text is an empty document."""
    texts = _encoded(batch, source.text_field)
    urls: list[bytes | None] = [b""] * len(texts)
    if is_text(batch.schema, "url"):
        urls = _encoded(batch, "url")
    rows = zip(texts, urls, _fields(batch, source), strict=True)
    for number, (text, url, fields) in enumerate(rows, start=first):
        row_location = f"{location}{number}"
        content = text or b""
        if len(content) > source.max_record_bytes:
            counts.add_too_long(row_location)
            continue
        try:
            decoded = content.decode()
        except UnicodeDecodeError as error:
            counts.add_bad(row_location, f"invalid UTF-8 ({error.reason} at byte {error.start})")
            continue
        yield Document(decoded, row_location, (url or b"").decode("utf-8", "replace"), fields=fields)


def _fields(batch: Any, source: Source) -> list[dict[str, Any]]:
    """Return, for each row, the fields that rules need."""
    needed = set(source.fields)
    for path in source.fields:
        needed.add(path.partition(".")[0])
    if is_text(batch.schema, "url"):
        # URLs are read as bytes, because they may not be UTF-8.
        needed.discard("url")
    names = [name for name in batch.schema.names if name in needed]
    rows: list[dict[str, Any]] = [{}] * batch.num_rows
    if names:
        rows = batch.select(names).to_pylist()
    return [{path: value_of(row, path) for path in source.fields} for row in rows]


def _encoded(batch: Any, column: str) -> list[bytes | None]:
    """Return the values of a text column as bytes. Parquet promises UTF-8, but nothing checks it."""
    import pyarrow as pa

    values = batch.column(column)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pa.large_binary()).to_pylist()
