"""Parquet files with a column of text, read in a process of their own: pyarrow ends it where a footer contradicts itself."""

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

PART_CHARACTERS = 2**20  # sent at a time
Item = Document | RecordCounts  # counts: since the item before
NOTHING = RecordCounts()
ROWS = 32  # decoded at a time: each may be as long as its writer liked
UNSUSPICIOUS_BYTES = 2**26  # of a column in a row group, which may be a page: so much memory is there for it
# times a column becomes larger by unpacking: more than text does, and more than is unpacked
DENSE = 10
BOMB = 100


class Parquet(Reader):
    """Files .parquet, of which only the columns of text and URL are read.

    A row group belongs to the unit in which it begins, so that several processes read a large file. pyarrow runs in a child
    process, which reads many files, so that the error names the file.
    """

    patterns = ("*.parquet",)
    divides = True
    has_fields = True

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        child = _idle.pop() if _idle else IsolatedProcess(_parts)
        try:
            for item in (item for part in child.ask(source, unit) for item in part):
                if isinstance(item, Document):
                    yield item
                else:
                    counts.add(item)
        except ProcessEnded as end:
            raise UserError(
                f"{unit}: cannot be read: the process reading it {end}: a file is corrupted, so download or copy it again, or "
                "the memory is too small, so give fewer --workers"
            ) from None
        except BaseException:  # also where the documents that are left are not wanted
            child.end()
            raise
        _idle.append(child)


_idle: list[IsolatedProcess] = []  # those of this process that wait for work: each takes a second to start


def _parts(source: Source, unit: Unit) -> Iterator[list[Item]]:
    """The documents of a unit in parts, and what was counted between them, also before an error."""
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
    """The documents of a unit, in this process. See Reader.read."""
    import pyarrow as pa  # takes a third of a second

    for name in unit.inputs:
        try:
            with open_file(name) as file:
                yield from _rows(name, file, source, unit, counts)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, RemoteError) or getattr(error, "errno", None) is not None:
                raise  # of the disk or server, not of the content
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
    wanted = list(dict.fromkeys([*columns, *source.fields]))
    first = 0
    for number in range(content.num_row_groups):
        group = content.metadata.row_group(number)
        chunks = [group.column(column) for column in range(group.num_columns)]
        begin = min([size - 1, *(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks)])
        if unit.begin <= max(0, begin) and (unit.end is None or begin < unit.end):
            read_chunks = [chunk for chunk in chunks if _is_read(chunk.path_in_schema, wanted)]
            rows = min(_rows_at_once(chunk, f"{name}:row {first}") for chunk in read_chunks)
            for batch in content.iter_batches(rows, row_groups=[number], columns=wanted, use_threads=False):
                yield from _documents(batch, f"{name}:row ", first, source, counts)
                first += batch.num_rows
            first -= group.num_rows
            counts.read_bytes += sum(chunk.total_compressed_size for chunk in chunks)
        first += group.num_rows


def _is_read(path: str, wanted: list[str]) -> bool:
    """Whether a column is read, by its path in the file. A column of structs has a path for each field."""
    return any(path == name or path.startswith(f"{name}.") for name in wanted)


def _rows_at_once(chunk: Any, place: str) -> int:
    """Rows to decode at a time, by the footer's sizes of a column. Raises UserError for a decompression bomb."""
    packed = chunk.total_compressed_size
    size = chunk.total_uncompressed_size
    if size > max(UNSUSPICIOUS_BYTES, BOMB * packed):
        raise UserError(
            f"{place}: a decompression bomb: {packed:,} bytes of column `{chunk.path_in_schema}` become {size:,}. Remove the "
            "file, or write it again with smaller row groups"
        )
    return 1 if size > DENSE * packed else ROWS  # every row may be the same long value


def _is_text(schema: Any, column: str) -> bool:
    """Whether there is such a column, of strings, binary ones too."""
    from pyarrow import types

    if schema.names.count(column) != 1:
        return False
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def _documents(batch: Any, place: str, first: int, source: Source, counts: RecordCounts) -> Iterator[Document]:
    """Yield the documents of a batch of rows. A null text is an empty document.

    Args:
        batch: Columns of text, URL and fields.
        place: Common prefix of the documents' places.
        first: Row number of the first row.
        source: The source.
        counts: Counts of unusable rows, to update.
    """
    texts = _encoded(batch, source.text_field)
    urls = _encoded(batch, "url") if _is_text(batch.schema, "url") else [b""] * len(texts)
    for number, (text, url, fields) in enumerate(zip(texts, urls, _fields(batch, source), strict=True), start=first):
        text = text or b""
        if len(text) > source.max_record_bytes:
            counts.add_too_long(f"{place}{number}")
        else:
            try:
                decoded = text.decode(), f"{place}{number}", (url or b"").decode("utf-8", "replace")
                yield Document(*decoded, fields=fields)
            except UnicodeDecodeError as error:
                counts.add_bad(f"{place}{number}", f"invalid UTF-8 ({error.reason} at byte {error.start})")


def _fields(batch: Any, source: Source) -> list[dict[str, Any]]:
    """Values of the fields that rules need, of each row."""
    wanted = {*source.fields, *(path.partition(".")[0] for path in source.fields)}
    if _is_text(batch.schema, "url"):  # URLs are read as bytes, since nothing guarantees UTF-8.
        wanted.discard("url")
    names = [name for name in batch.schema.names if name in wanted]
    rows = batch.select(names).to_pylist() if names else [{}] * batch.num_rows
    return [{path: value_of(row, path) for path in source.fields} for row in rows]


def _encoded(batch: Any, column: str) -> list[bytes | None]:
    """Values in UTF-8, which Parquet promises and nobody checks."""
    import pyarrow as pa

    values = batch.column(column)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pa.large_binary()).to_pylist()
