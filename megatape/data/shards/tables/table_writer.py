"""Writes document tables.

A table is a Parquet file beside the shards, compressed with zstd. It has one row per document, in the order of the split's
tokens:

    tokens  int64   number of tokens, including control tokens; documents follow each other without gaps
    bytes   int64   size of the text in UTF-8
    place   string  location in the source, such as `file:line`
    url     string  address of the document, or empty
    hash    uint64  64 bits of BLAKE2b of the text, by which `distinct` recognizes it; earlier versions lack the column
    scores  string  JSON object with the score from each scoring rule; the column is missing without such rules

Equal documents give equal bytes with the same version of pyarrow.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from megatape.data.document_entries import DocumentTable
from megatape.data.io.columns import number_column, numbers_of, text_column
from megatape.data.shards.hashes import file_sha256
from megatape.utils.files.files import create_file

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

# Default rows per row group.
ROWS = 2**14


def table_rows(
    *,
    tokens: Sequence[int] | np.ndarray,
    text_bytes: Sequence[int] | np.ndarray,
    locations: Sequence[str],
    urls: Sequence[str],
    hashes: Sequence[int] | np.ndarray,
    scores: Sequence[Mapping[str, float]],
) -> "RecordBatch":
    """Return rows of a table, one per document.

    Args:
        tokens: Length of each document in tokens.
        text_bytes: Size of each text in UTF-8.
        locations: Location of each document in the source.
        urls: Address of each document, or empty.
        hashes: Hash of each text.
        scores: Scores of each document by cleaning rule, empty for all documents or for none.
    """
    # The import takes a third of a second.
    import pyarrow

    columns = {
        "tokens": number_column(tokens, "int64"),
        "bytes": number_column(text_bytes, "int64"),
        "place": text_column(locations),
        "url": text_column(urls),
        "hash": number_column(hashes, "uint64"),
    }
    if any(scores):
        columns["scores"] = text_column([json.dumps(scores_of_document) for scores_of_document in scores])
    return pyarrow.RecordBatch.from_arrays(list(columns.values()), list(columns))


class TableWriter:
    """Writes the table `{name}-documents.parquet` into a folder, unless there are no documents.

    Args:
        directory: Folder of the table.
        name: Name of the split, or a unique name for a part of it.
        group_rows: Rows per row group, all of them in memory.
    """

    def __init__(self, directory: Path, name: str, group_rows: int = ROWS) -> None:
        self._path = directory / f"{name}-documents.parquet"
        self._group_rows = group_rows
        # Rows that are not written yet.
        self._rows: list[Table] = []
        self._num_rows = 0
        self._writer: Any = None  # ParquetWriter
        self._file: IO[bytes] | None = None
        self._num_documents = 0
        self._num_tokens = 0

    def add(self, rows: "RecordBatch") -> None:
        """Append rows of `table_rows`."""
        from pyarrow import Table

        self._rows.append(Table.from_batches([rows]))
        self._num_rows += rows.num_rows
        self._num_documents += rows.num_rows
        self._num_tokens += int(numbers_of(rows["tokens"]).sum())
        if self._num_rows >= self._group_rows:
            self._write_groups()

    def close(self) -> list[DocumentTable]:
        """Write the remaining rows. Returns the table's index entry, or no entry without documents."""
        if self._num_rows:
            self._write_groups(is_last=True)
        if self._writer is None:
            return []
        self._writer.close()
        assert self._file is not None
        self._file.close()
        return [DocumentTable(self._path.name, file_sha256(self._path), self._num_documents, self._num_tokens)]

    def _write_groups(self, is_last: bool = False) -> None:
        """Write full row groups, and with `is_last` the remaining rows."""
        from pyarrow import concat_tables
        from pyarrow.parquet import ParquetWriter

        # A column in one piece gives the same bytes for any division into batches.
        table = concat_tables(self._rows).combine_chunks()
        if self._writer is None:
            self._file = create_file(self._path)
            self._writer = ParquetWriter(
                self._file, table.schema, compression="zstd", use_dictionary=False, write_statistics=False
            )
        while table.num_rows >= self._group_rows or (is_last and table.num_rows):
            self._writer.write_table(table.slice(0, self._group_rows))
            table = table.slice(self._group_rows)
        self._rows = [table]
        self._num_rows = table.num_rows
