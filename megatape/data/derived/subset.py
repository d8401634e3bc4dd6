"""Writes a subset of a data directory: selects documents by their tables, and copies their tokens into new shards."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from megatape.data.counts import DocumentCounts
from megatape.data.derived.document_filter import DocumentFilter
from megatape.data.derived.input_folder import InputFolder
from megatape.data.document_entries import DocumentTable
from megatape.data.shards.entries import SPLITS, Index, Split, check_filled
from megatape.data.shards.hashes import file_sha256
from megatape.data.shards.index import build_index
from megatape.data.shards.reading.reader import OnTokens
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.tables.table_writer import ROWS
from megatape.data.shards.writer import MEMBER_TOKENS, SplitWriter
from megatape.errors import path_errors
from megatape.utils.files.atomic import new_folder
from megatape.utils.files.files import create_file

KIND = "subset"
# Maximum number of tokens to read at a time.
READ_TOKENS = MEMBER_TOKENS


@path_errors()
def subset(
    folder: Path,
    output: Path,
    conditions: DocumentFilter,
    progress: OnTokens = lambda tokens: None,
    *,
    read_tokens: int = READ_TOKENS,
) -> Index:
    """Write the data directory `output` with some documents of another one, in order, all or nothing.

    Args:
        folder: Data directory with document tables.
        output: New folder.
        conditions: Conditions on documents.
        progress: Called repeatedly with the number of tokens written since the last call.
        read_tokens: Maximum number of tokens to read at a time.

    Returns:
        The index.

    Raises:
        UserError, FileNotFoundError: `folder` is missing, corrupted or has no tables, or no document of a split matches.
        FileExistsError: `output` exists.
    """
    source = InputFolder.open(folder)
    with new_folder(output) as new:
        writer = _SubsetWriter(new, conditions, progress, read_tokens)
        splits = {}
        for name in SPLITS:
            stored = StoredSplit(folder, name)
            splits[name] = writer.write(stored)
        check_filled(splits, f"no document of {folder}, since none meets all conditions: select more")
        counts = writer.counts
        counts.dropped = {KIND: counts.num_kept - counts.written}
        return build_index(
            new,
            stored.tokenizer(),
            source={"kind": KIND, "folder": str(folder)},
            validation_share=source.index.validation_share,
            splits=splits,
            counts=counts.dropped,
            document_tables=writer.tables,
            ledger={str(folder): counts},
            rules=[*source.index.rules, {"rule": KIND, "options": conditions.describe()}],
            merged=source.origins,
        )


class _SubsetWriter:
    """Writes the documents of a subset, split by split.

    Args:
        folder: Folder for the new shards and tables.
        conditions: Conditions on documents.
        progress: Called repeatedly with the number of tokens written since the last call.
        read_tokens: Maximum number of tokens to read at a time.

    Attributes:
        counts: Counts of documents read and written so far.
        tables: Index entries of the tables, by split.
    """

    def __init__(self, folder: Path, conditions: DocumentFilter, progress: OnTokens, read_tokens: int) -> None:
        self._folder = folder
        self._conditions = conditions
        self._progress = progress
        self._read_tokens = read_tokens
        self.counts = DocumentCounts()
        self.tables: dict[str, list[DocumentTable]] = {}

    def write(self, stored: StoredSplit) -> Split:
        """Write the selected documents of a split, and their tables. Returns the split's index entry."""
        writer = SplitWriter(self._folder, stored.name, stored.vocab_size, stored.eos_id)
        tables: list[DocumentTable] = []
        total_text_bytes = 0
        for number, (rows, firsts) in enumerate(stored.tables.isolate().each()):
            is_chosen = self._conditions.matches(rows, stored.description)
            chosen_rows = rows.filter(is_chosen)
            num_tokens = int(chosen_rows["tokens"].to_numpy().sum())
            text_bytes = int(chosen_rows["bytes"].to_numpy().sum())
            self.counts.add(
                DocumentCounts(read=is_chosen.size, written=len(chosen_rows), tokens=num_tokens, text_bytes=text_bytes)
            )
            if len(chosen_rows):
                path = self._folder / f"{stored.name}-{number:05d}-documents.parquet"
                tables.append(_write_table(chosen_rows, path, num_tokens))
            # Begin and end of each run of consecutive chosen documents.
            edges = np.flatnonzero(np.diff(is_chosen, prepend=False, append=False))
            runs = firsts[edges].reshape(-1, 2).tolist()
            for begin, end in runs:
                self._copy(stored, writer, begin, end)
            total_text_bytes += text_bytes
        self.tables[stored.name] = tables
        return replace(writer.close(), text_bytes=total_text_bytes)

    def _copy(self, stored: StoredSplit, writer: SplitWriter, begin: int, end: int) -> None:
        """Copy tokens [begin, end) of a split's stream."""
        for first in range(begin, end, self._read_tokens):
            last = min(first + self._read_tokens, end)
            ids = stored.stream(first, last)
            writer.add(ids, text_bytes=0)
            self._progress(ids.size)


def _write_table(rows: Any, path: Path, num_tokens: int) -> DocumentTable:
    from pyarrow import parquet

    with create_file(path) as file:
        parquet.write_table(rows, file, ROWS, compression="zstd", use_dictionary=False, write_statistics=False)
    return DocumentTable(path.name, file_sha256(path), len(rows), num_tokens)
