"""Reads Parquet files with a text column, in a child process, because pyarrow crashes on inconsistent footers."""

import io
from collections.abc import Iterator
from typing import Any

from megatape.data.counts import RecordCounts
from megatape.data.io.files import open_file
from megatape.data.sources.document import Document
from megatape.data.sources.isolated_reader import IsolatedReader
from megatape.data.sources.source import Source
from megatape.data.sources.text_columns import check_text_column, documents_of_rows, is_text
from megatape.data.sources.units import Unit
from megatape.errors import UserError

# Rows decoded at a time. A row may have any length.
ROWS = 32
# Columns up to this size fit into memory, so they are not checked for decompression bombs.
BOMB_CHECK_BYTES = 2**26
# Columns with a higher ratio of unpacked to packed size are decoded row by row. Text has lower ratios.
DENSE_RATIO = 10
# Columns with a higher ratio of unpacked to packed size are errors.
BOMB_RATIO = 100


class Parquet(IsolatedReader):
    """Files named .parquet. Only the columns of text, URL and fields are read.

    A row group belongs to the unit in which it begins, so several processes can read a large file.
    """

    file_format = "Parquet"
    patterns = ("*.parquet",)
    divides = True
    has_fields = True

    def read_here(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        (name,) = unit.inputs
        with open_file(name) as file:
            yield from _rows(name, file, source, unit, counts)


def _rows(name: str, file: Any, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
    from pyarrow import parquet

    content = parquet.ParquetFile(file, page_checksum_verification=True, buffer_size=2**20, pre_buffer=False)
    size = file.seek(0, io.SEEK_END)
    columns = [column for column in (source.text_field, "url") if is_text(content.schema_arrow, column)]
    if not content.metadata.num_rows:
        return
    check_text_column(name, content.schema_arrow, source)
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
            yield from documents_of_rows(batch, f"{name}:row ", row, source, counts)
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


def _rows_at_once(chunk: Any, location: str) -> int:
    """Return how many rows to decode at a time, judging by a column's sizes in the footer.

    Raises:
        UserError: The column is a decompression bomb.
    """
    packed = chunk.total_compressed_size
    size = chunk.total_uncompressed_size
    if size > max(BOMB_CHECK_BYTES, BOMB_RATIO * packed):
        raise UserError(
            f"{location}: a decompression bomb: {packed:,} bytes of column `{chunk.path_in_schema}` become {size:,}. Remove "
            "the file, or write it again with smaller row groups"
        )
    if size > DENSE_RATIO * packed:
        # Every row may be the same long value.
        return 1
    return ROWS
