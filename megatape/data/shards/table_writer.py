"""Writes document tables.

A table is a Parquet file beside the shards, compressed with zstd. It has one row per document, in the order of the split's
tokens:

    tokens  int64   number of tokens, including control tokens; documents follow each other without gaps
    bytes   int64   size of the text in UTF-8
    place   string  place in the source, such as `file:line`
    url     string  address of the document, or empty
    hash    uint64  64 bits of BLAKE2b of the text, by which `distinct` recognizes it; earlier versions lack the column
    scores  string  JSON object with the score from each scoring rule; the column is missing without such rules

Equal documents give equal bytes with the same version of pyarrow.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from megatape.data.document_entries import DocumentTable
from megatape.data.shards.hashes import file_sha256
from megatape.utils.files import create_file

# Default rows per row group.
ROWS = 2**14
# Column name -> type, in order.
COLUMNS = {
    "tokens": "int64",
    "bytes": "int64",
    "place": "string",
    "url": "string",
    "hash": "uint64",
    "scores": "string",
}


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
        self._columns: dict[str, list[Any]] = {column: [] for column in COLUMNS}
        self._writer: Any = None  # ParquetWriter
        self._file: IO[bytes] | None = None
        self._num_documents = 0
        self._num_tokens = 0

    def add(
        self,
        *,
        tokens: Sequence[int],
        text_bytes: Sequence[int],
        places: Sequence[str],
        urls: Sequence[str],
        hashes: Sequence[int],
        scores: Sequence[Mapping[str, float]],
    ) -> None:
        """Append documents.

        Args:
            tokens: Length of each document in tokens.
            text_bytes: Size of each text in UTF-8.
            places: Place of each document in the source.
            urls: Address of each document, or empty.
            hashes: Hash of each text.
            scores: Scores of each document by cleaning rule, empty for all documents or for none.
        """
        self._columns["tokens"] += tokens
        self._columns["bytes"] += text_bytes
        self._columns["place"] += places
        self._columns["url"] += urls
        self._columns["hash"] += hashes
        self._columns["scores"] += [json.dumps(scores_of_document) for scores_of_document in scores if scores_of_document]
        self._num_documents += len(tokens)
        self._num_tokens += sum(tokens)
        while len(self._columns["tokens"]) >= self._group_rows:
            self._write()

    def close(self) -> list[DocumentTable]:
        """Write the remaining rows. Returns the table's index entry, or no entry without documents."""
        if self._columns["tokens"]:
            self._write()
        if self._writer is None:
            return []
        self._writer.close()
        assert self._file is not None
        self._file.close()
        return [DocumentTable(self._path.name, file_sha256(self._path), self._num_documents, self._num_tokens)]

    def _write(self) -> None:
        """Write a row group."""
        # The import takes a third of a second.
        import pyarrow
        from pyarrow.parquet import ParquetWriter

        fields = []
        arrays = []
        for name, values in self._columns.items():
            if values:
                kind = pyarrow.type_for_alias(COLUMNS[name])
                fields.append((name, kind))
                arrays.append(_arrow_array(values[: self._group_rows], kind))
        schema = pyarrow.schema(fields)
        if self._writer is None:
            self._file = create_file(self._path)
            self._writer = ParquetWriter(self._file, schema, compression="zstd", use_dictionary=False, write_statistics=False)
        self._writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
        for column in self._columns.values():
            del column[: self._group_rows]


def _arrow_array(values: list[Any], kind: Any) -> Any:
    """Return values as a pyarrow.Array, without `pyarrow.array`, which would spend half a second importing pandas."""
    import pyarrow

    if kind == pyarrow.string():
        builder = pyarrow.lib.StringBuilder()
        builder.append_values(values)
        return builder.finish()
    buffer = pyarrow.py_buffer(np.array(values, str(kind)))
    return pyarrow.Array.from_buffers(kind, len(values), [None, buffer])
