"""Reads Parquet files with a text column, in a child process, because pyarrow crashes on inconsistent footers."""

import io
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from megatape.data.counts import RecordCounts
from megatape.data.io.files import open_file
from megatape.data.io.isolated import IsolatedProcess, ProcessEnded
from megatape.data.io.retries import RemoteError
from megatape.data.sources.document import Document
from megatape.data.sources.fields import value_of
from megatape.data.sources.source import Reader, Source
from megatape.data.sources.units import Unit
from megatape.errors import UserError

# Characters that the child process sends at a time.
PART_CHARACTERS = 2**20
# A document, or the counts since the previous item.
Item = Document | RecordCounts
NOTHING = RecordCounts()
# Rows decoded at a time. A row may have any length.
ROWS = 32
# Columns up to this size fit into memory, so they are not checked for decompression bombs.
BOMB_CHECK_BYTES = 2**26
# Columns with a higher ratio of unpacked to packed size are decoded row by row. Text has lower ratios.
DENSE_RATIO = 10
# Columns with a higher ratio of unpacked to packed size are errors.
BOMB_RATIO = 100
# Idle child processes. They are reused, because starting one takes a second.
_idle: list[IsolatedProcess] = []


class Parquet(Reader):
    """Files named .parquet. Only the columns of text, URL and fields are read.

    A row group belongs to the unit in which it begins, so several processes can read a large file. If the child process ends,
    the error names the unit.
    """

    patterns = ("*.parquet",)
    divides = True
    has_fields = True

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        if _idle:
            child = _idle.pop()
        else:
            child = IsolatedProcess(_parts)
        try:
            for part in child.ask(source, unit):
                for item in part:
                    if isinstance(item, Document):
                        yield item
                    else:
                        counts.add(item)
        except ProcessEnded as end:
            raise UserError(
                f"{unit}: cannot be read: the process reading it {end}: a file is corrupted, so download or copy it again, or "
                "the memory is too small, so give fewer --workers"
            ) from None
        except BaseException:
            # Also when the caller stops reading before the last document.
            child.end()
            raise
        _idle.append(child)


def _parts(source: Source, unit: Unit) -> Iterator[list[Item]]:
    """Yield the documents of a unit in parts, interleaved with counts. Counts come even before an error."""
    counts = RecordCounts()
    part = list[Item]()
    size = 0
    try:
        for document in _read(source, unit, counts):
            if counts != NOTHING:
                part.append(deepcopy(counts))
                vars(counts).update(vars(RecordCounts()))
            part.append(document)
            size += len(document.text)
            if size > PART_CHARACTERS:
                yield part
                part = []
                size = 0
    except Exception:
        yield [*part, counts]
        raise
    yield [*part, counts]


def _read(source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
    """Yield the documents of a unit, in this process. See Reader.read."""
    # The import takes a third of a second.
    import pyarrow as pa

    for name in unit.inputs:
        try:
            with open_file(name) as file:
                yield from _rows(name, file, source, unit, counts)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, RemoteError) or getattr(error, "errno", None) is not None:
                # The error is about the disk or server, not the content.
                raise
            raise UserError(f"{name}: corrupted Parquet file ({error}): download or copy it again") from error


def _rows(name: str, file: Any, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
    from pyarrow import parquet

    content = parquet.ParquetFile(file, page_checksum_verification=True, buffer_size=2**20, pre_buffer=False)
    size = file.seek(0, io.SEEK_END)
    columns = [column for column in (source.text_field, "url") if _is_text(content.schema_arrow, column)]
    if not content.metadata.num_rows:
        return
    if source.text_field not in columns:
        raise UserError(
            f"{name}: the file has no column `{source.text_field}` of text, only {', '.join(content.schema_arrow.names[:20])}: "
            "leave the file out, or give the `text_field` of all files"
        )
    read_columns = list(dict.fromkeys([*columns, *source.fields]))
    first_row = 0
    for number in range(content.num_row_groups):
        group = content.metadata.row_group(number)
        chunks = [group.column(column) for column in range(group.num_columns)]
        row = first_row
        first_row += group.num_rows
        if not _is_in_unit(chunks, size, unit):
            continue
        read_chunks = [chunk for chunk in chunks if _is_read(chunk.path_in_schema, read_columns)]
        rows_at_once = min(_rows_at_once(chunk, f"{name}:row {row}") for chunk in read_chunks)
        for batch in content.iter_batches(rows_at_once, row_groups=[number], columns=read_columns, use_threads=False):
            yield from _documents(batch, f"{name}:row ", row, source, counts)
            row += batch.num_rows
        counts.read_bytes += sum(chunk.total_compressed_size for chunk in chunks)


def _is_in_unit(chunks: list[Any], file_size: int, unit: Unit) -> bool:
    """Whether a row group begins in a unit, by the offsets of its column chunks."""
    offsets = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    begin = min([file_size - 1, *offsets])
    return unit.begin <= max(0, begin) and (unit.end is None or begin < unit.end)


def _is_read(path: str, columns: list[str]) -> bool:
    """Whether to read a column, by its path in the file. A column of structs has a path for each field."""
    return any(path == name or path.startswith(f"{name}.") for name in columns)


def _rows_at_once(chunk: Any, place: str) -> int:
    """Return how many rows to decode at a time, judging by a column's sizes in the footer.

    Raises:
        UserError: The column is a decompression bomb.
    """
    packed = chunk.total_compressed_size
    size = chunk.total_uncompressed_size
    if size > max(BOMB_CHECK_BYTES, BOMB_RATIO * packed):
        raise UserError(
            f"{place}: a decompression bomb: {packed:,} bytes of column `{chunk.path_in_schema}` become {size:,}. Remove the "
            "file, or write it again with smaller row groups"
        )
    if size > DENSE_RATIO * packed:
        # Every row may be the same long value.
        return 1
    return ROWS


def _is_text(schema: Any, column: str) -> bool:
    """Whether exactly one column has this name, and contains text or binary strings."""
    from pyarrow import types

    if schema.names.count(column) != 1:
        return False
    kind = schema.field(column).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def _documents(batch: Any, place: str, first: int, source: Source, counts: RecordCounts) -> Iterator[Document]:
    """Yield the documents in a batch, whose rows are numbered from `first` on. A null text is an empty document."""
    texts = _encoded(batch, source.text_field)
    urls: list[bytes | None] = [b""] * len(texts)
    if _is_text(batch.schema, "url"):
        urls = _encoded(batch, "url")
    rows = zip(texts, urls, _fields(batch, source), strict=True)
    for number, (text, url, fields) in enumerate(rows, start=first):
        row_place = f"{place}{number}"
        content = text or b""
        if len(content) > source.max_record_bytes:
            counts.add_too_long(row_place)
            continue
        try:
            decoded = content.decode()
        except UnicodeDecodeError as error:
            counts.add_bad(row_place, f"invalid UTF-8 ({error.reason} at byte {error.start})")
            continue
        yield Document(decoded, row_place, (url or b"").decode("utf-8", "replace"), fields=fields)


def _fields(batch: Any, source: Source) -> list[dict[str, Any]]:
    """Return, for each row, the fields that rules need."""
    needed = set(source.fields)
    for path in source.fields:
        needed.add(path.partition(".")[0])
    if _is_text(batch.schema, "url"):
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
