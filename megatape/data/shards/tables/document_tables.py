"""Reads a split's document tables: lengths, and locations in the source. table_writer.py lists the columns."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from megatape.data.document_entries import DocumentTable
from megatape.data.shards.entries import Index
from megatape.data.shards.hashes import check_file
from megatape.data.shards.tables.table_file import TableFile, verify_table
from megatape.data.shards.tables.table_writer import ROWS
from megatape.errors import UserError

if TYPE_CHECKING:
    from pyarrow import Table

# Domain in a lower-case URL, with or without scheme.
DOMAIN = r"^(?:[a-z][a-z0-9+.-]*://)?(?:[^/?#@]*@)?(?:www\.)?(?P<domain>[^/:?#]+)"
# Tables held in memory, each taking eight bytes per document.
TABLE_CACHE_SIZE = 8


@dataclass(frozen=True)
class DocumentMatch:
    """Document with its row in the table.

    Attributes:
        number: Number in the split, from 0.
        first: First token, as an index in the split's stream.
        tokens: Number of tokens.
        bytes: Text size in UTF-8.
        location: Location in the source.
        url: Address, or empty.
        hash: Text hash (table_writer.py), None in tables from earlier versions.
        scores: Scores by cleaning rules, as JSON; empty without such rules.
    """

    number: int
    first: int
    tokens: int
    bytes: int
    location: str
    url: str
    hash: int | None = None
    scores: str = ""


@dataclass(frozen=True)
class DomainTotal:
    """Documents from one domain.

    Attributes:
        domain: Domain name without `www.`.
        tokens: Number of tokens.
        documents: Number of documents.
    """

    domain: str
    tokens: int
    documents: int


class DocumentTables:
    """Document tables of one split.

    Args:
        directory: Data directory.
        index: Index of the data directory.
        split: Split name.
        batch_rows: Documents to read at a time.

    Raises:
        UserError: The directory has no tables, or they do not fit the split's tokens.
    """

    def __init__(self, directory: Path, index: Index, split: str, batch_rows: int = ROWS) -> None:
        if split not in index.document_tables:
            raise UserError(
                f"{directory} has no tables of documents: `megatape prepare corpus` writes them, prepare the data again"
            )
        self._directory = directory
        self._name = f"the {split} split of {directory}"
        self._batch_rows = batch_rows
        self._tables = index.document_tables[split]
        # Each table's first token and first document, followed by the totals.
        self._first_tokens = [0, *accumulate(table.tokens for table in self._tables)]
        self._first_documents = [0, *accumulate(table.documents for table in self._tables)]
        self._opened = lru_cache(TABLE_CACHE_SIZE)(self._read)
        self._is_isolated = False
        num_tokens = self._first_tokens[-1]
        if num_tokens != index.splits[split].tokens:
            raise UserError(
                f"{directory}: the documents in the tables of {split} have {num_tokens:,} tokens, its members "
                f"{index.splits[split].tokens:,}: prepare it again"
            )

    def isolate(self) -> Self:
        """Verify each table in a child process before reading it, for untrusted directories. Returns the tables."""
        self._is_isolated = True
        return self

    def lengths(self) -> Iterator[np.ndarray]:
        """Yield document lengths in tokens, in order, int64, some thousand documents at a time."""
        for table in self._tables:
            num_tokens = 0
            for part in self._column(self._open(table), "tokens"):
                num_tokens += int(part.sum())
                yield part
            if num_tokens != table.tokens:
                raise self._differs(table)

    def hashes(self) -> Iterator[np.ndarray]:
        """Yield the documents' text hashes in order, uint64, some thousand at a time.

        Raises:
            UserError: A table has no hashes.
        """
        for table in self._tables:
            file = self._open(table)
            if "hash" not in file.names:
                raise UserError(
                    f"{self._directory}: {table.file} has no hashes of documents, which earlier versions did not write: "
                    "prepare the folder again with this version"
                )
            yield from self._column(file, "hash")

    def domains(self, count: int) -> list[DomainTotal]:
        """Return the `count` domains with the most documents, ignoring documents without URL."""
        from pyarrow import Table, compute

        names = ["domain", "tokens", "documents"]
        total: Table | None = None
        for table in self._tables:
            rows = self._open(table).read(["url", "tokens"])
            match = compute.extract_regex(compute.utf8_lower(rows["url"]), DOMAIN)
            columns = [compute.struct_field(match, "domain"), rows["tokens"], np.ones(len(rows), int)]
            parts = [Table.from_arrays(columns, names).drop_null()]
            if total is not None:
                parts.insert(0, total)
            total = _summed(parts, names)
        if total is None:
            return []
        order = [("documents", "descending"), ("domain", "ascending")]
        rows = total.sort_by(order)[:count].to_pylist()
        return [DomainTotal(**row) for row in rows]

    def each(self) -> Iterator[tuple["Table", np.ndarray]]:
        """Yield each table in order, with each document's first token and the end of the last document, int64.

        Raises:
            FileNotFoundError: A table is missing.
            UserError: A table differs from the index.
        """
        for number in range(len(self._tables)):
            file, firsts = self._read(number)
            yield file.read(), firsts

    def find(self, token: int) -> DocumentMatch:
        """Return the document containing a token, given its index in the stream. Raises UserError outside the stream."""
        self._check("token", token, self._first_tokens[-1])
        table = bisect_right(self._first_tokens, token) - 1
        _, firsts = self._opened(table)
        row = int(firsts.searchsorted(token, side="right")) - 1
        return self.document(self._first_documents[table] + row)

    def document(self, number: int) -> DocumentMatch:
        """Return a document by its number in the split. Raises UserError if there is no such document."""
        first, _ = self.span(number)
        table, row = self._locate(number)
        file, _ = self._opened(table)
        (columns,) = file.read().slice(row, 1).to_pylist()
        columns["location"] = columns.pop("place")
        return DocumentMatch(number, first, **columns)

    def span(self, number: int) -> tuple[int, int]:
        """Return a document's first token in the stream, and its end. Raises UserError if there is no such document."""
        self._check("document", number, self._first_documents[-1])
        table, row = self._locate(number)
        _, firsts = self._opened(table)
        return firsts.item(row), firsts.item(row + 1)

    def locations(self, tokens: np.ndarray) -> list[str]:
        """Return where in the source each token's document came from.

        Args:
            tokens: Token indices in the split's stream, int64 [n].

        Raises:
            FileNotFoundError, UserError: A table needed is missing or corrupted.
        """
        locations = [""] * tokens.size
        numbers = np.searchsorted(self._first_tokens, tokens, side="right") - 1
        for number in np.unique(numbers).tolist():
            file, firsts = self._read(number)
            (in_table,) = np.nonzero(numbers == number)
            rows = firsts.searchsorted(tokens[in_table], side="right") - 1
            column = file.read(["place"])["place"].take(rows).to_pylist()
            for token, location in zip(in_table.tolist(), column, strict=True):
                locations[token] = location
        return locations

    def _check(self, kind: str, number: int, count: int) -> None:
        if not 0 <= number < count:
            raise UserError(f"{kind} {number:,}: {self._name} has {kind}s 0 to {count - 1:,}")

    def _locate(self, document: int) -> tuple[int, int]:
        """Return the number of a document's table and its row."""
        table = bisect_right(self._first_documents, document) - 1
        return table, document - self._first_documents[table]

    def _read(self, number: int) -> tuple[TableFile, np.ndarray]:
        """Return a table, each document's first token, and the end of the last document, int64."""
        table = self._tables[number]
        file = self._open(table)
        lengths = self._column(file, "tokens")
        firsts = np.cumsum(np.concatenate([[self._first_tokens[number]], *lengths]))
        if (firsts.size, firsts[-1]) != (table.documents + 1, self._first_tokens[number + 1]):
            raise self._differs(table)
        return file, firsts

    def _open(self, table: DocumentTable) -> TableFile:
        """Open a table. Raises FileNotFoundError, or UserError if it is corrupted or differs from the index."""
        path = self._directory / table.file
        check_file(path, table.sha256)
        if self._is_isolated:
            verify_table(path)
        file = TableFile(path)
        if file.num_rows != table.documents:
            raise self._differs(table)
        return file

    def _column(self, file: TableFile, name: str) -> Iterator[np.ndarray]:
        """Yield a column of numbers in batches."""
        for rows in file.iter_batches(self._batch_rows, columns=[name]):
            yield rows[name].to_numpy()

    def _differs(self, table: DocumentTable) -> UserError:
        """Return the error about a table whose documents differ from the index."""
        return UserError(f"{self._directory}: corrupted, {table.file} has other documents than the index: prepare it again")


def lengths_by_end(members: Iterable[np.ndarray], eos_id: int) -> Iterator[np.ndarray]:
    """Yield document lengths of a split without tables, like `DocumentTables.lengths`.

    Args:
        members: Token ids of all members, in order.
        eos_id: Token ending each document.
    """
    # Number of tokens so far in a document continuing in the next member.
    num_begun = 0
    for ids in members:
        ends = np.flatnonzero(ids == eos_id) + 1 + num_begun
        yield np.diff(ends, prepend=0)
        num_begun += ids.size
        if ends.size:
            num_begun -= int(ends[-1])


def _summed(tables: list["Table"], names: list[str]) -> "Table":
    """Group tables by the first column, summing the others."""
    from pyarrow import concat_tables

    key, *columns = names
    sums = concat_tables(tables).group_by(key).aggregate([(name, "sum") for name in columns])
    return sums.select([key, *(f"{name}_sum" for name in columns)]).rename_columns(names)
