"""The documents of a split, in the order of its tokens: how long each is and where it comes from.

A table is a Parquet file beside the shards, compressed by zstd, with these columns:

    tokens  int64   of the document, control tokens included: those before it are the tokens of all rows before
    bytes   int64   of its text, in UTF-8
    place   string  where in the source it was, such as `file:line`
    url     string  where the source says that it was found, or empty

Equal documents give equal bytes, by one version of pyarrow.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from megatape.data.shards.index import DocumentTable, Index
from megatape.errors import MissingPath, UserError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile, ParquetWriter

ROWS = 2**14  # in a group, which is what a writer holds in memory
COLUMNS = ("tokens", "bytes", "place", "url")


class TableWriter:
    """Writes the table `{name}-documents.parquet` into `directory`, unless there are no documents.

    name: of the split, or of a part of it that no other part has.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / f"{name}-documents.parquet"
        self._rows: list[tuple[int, int, str, str]] = []
        self._writer: ParquetWriter | None = None
        self._documents = self._tokens = 0

    def add(self, tokens: int, text_bytes: int, place: str, url: str) -> None:
        """Append a document."""
        self._rows.append((tokens, text_bytes, place, url))
        self._documents += 1
        self._tokens += tokens
        if len(self._rows) == ROWS:
            self._write()

    def close(self) -> list[DocumentTable]:
        """Write the rest. Returns the table's part of the index: none without documents."""
        if self._rows:
            self._write()
        if self._writer is None:
            return []
        self._writer.close()
        return [DocumentTable(self._path.name, _sha256(self._path), self._documents, self._tokens)]

    def _write(self) -> None:
        import pyarrow  # takes a third of a second to import, and only this needs it
        from pyarrow.parquet import ParquetWriter

        types = pyarrow.int64(), pyarrow.int64(), pyarrow.string(), pyarrow.string()
        schema = pyarrow.schema(list(zip(COLUMNS, types, strict=True)))
        if self._writer is None:
            self._writer = ParquetWriter(self._path, schema, compression="zstd", use_dictionary=False, write_statistics=False)
        columns = [list(column) for column in zip(*self._rows, strict=True)]
        self._writer.write_table(pyarrow.table(columns, schema))
        self._rows.clear()


@dataclass(frozen=True)
class Found:
    """A document of a split. number: from 0. first: its first token in the split's stream."""

    number: int
    first: int
    tokens: int
    bytes: int
    place: str
    url: str


class DocumentTables:
    """Those of one split. Raises UserError if the folder has none."""

    def __init__(self, directory: Path, index: Index, split: str) -> None:
        if split not in index.document_tables:
            raise UserError(
                f"{directory} has no tables of documents: `megatape prepare corpus` writes them, prepare the data again"
            )
        self._directory, self._split, self._tables = directory, split, index.document_tables[split]
        self._num_tokens = index.splits[split].tokens

    def lengths(self) -> Iterator[np.ndarray]:
        """The tokens of each document in order, int64, some thousand documents at a time."""
        for table in self._tables:
            file = self._open(table)
            yield from (_tokens(file, group) for group in range(file.num_row_groups))

    def verify(self) -> None:
        """Raise FileNotFoundError or UserError if a table is not what the index lists, or does not fit the split's tokens."""
        num_tokens = sum(int(lengths.sum()) for lengths in self.lengths())
        if num_tokens != self._num_tokens:
            raise UserError(
                f"{self._directory}: the documents in the tables of {self._split} have {num_tokens:,} tokens, its members "
                f"{self._num_tokens:,}: prepare it again"
            )

    def find(self, token: int) -> Found:
        """The document to which a token of the split belongs. Raises UserError if there is no such token."""
        if not 0 <= token < self._num_tokens:
            raise UserError(
                f"token {token:,}: the {self._split} split of {self._directory} has tokens 0 to {self._num_tokens - 1:,}"
            )
        number = first = 0  # of the document that follows those passed
        for table in self._tables:
            if token >= first + table.tokens:
                number, first = number + table.documents, first + table.tokens
                continue
            file = self._open(table)
            for group in range(file.num_row_groups):
                tokens = _tokens(file, group)
                ends = first + np.cumsum(tokens)
                if token < ends[-1]:
                    row = int(np.searchsorted(ends, token, side="right"))
                    content = file.read_row_group(group).slice(row, 1).to_pylist()[0]
                    return Found(number + row, int(ends[row] - tokens[row]), **content)
                number, first = number + tokens.size, int(ends[-1])
        raise UserError(f"{self._directory}: corrupted, its tables of documents end before token {token:,}: prepare it again")

    def _open(self, table: DocumentTable) -> "ParquetFile":
        """Raises FileNotFoundError, or UserError if it is not the file that the index lists."""
        from pyarrow.parquet import ParquetFile

        path = self._directory / table.file
        if not path.is_file():
            raise MissingPath(f"{path}: not found, a table of documents: copy it again or re-run the preparation")
        if (found := _sha256(path)) != table.sha256:
            raise UserError(
                f"{path}: corrupted, sha256 is {found}, the index says {table.sha256}: copy it again or re-run the preparation"
            )
        return ParquetFile(path)


def lengths_by_end(members: Iterable[np.ndarray], eos_id: int) -> Iterator[np.ndarray]:
    """The tokens of each document of a split without tables, as `lengths` has them: a document ends with its end token.

    members: token ids of all members, in order.
    """
    begun = 0  # tokens of a document that goes on in the next member
    for ids in members:
        ends = np.flatnonzero(ids == eos_id) + 1 + begun
        yield np.diff(ends, prepend=0)
        begun += ids.size - int(ends[-1] if ends.size else 0)


def _tokens(file: "ParquetFile", group: int) -> np.ndarray:
    """How many each document of a row group has, int64."""
    tokens: np.ndarray = file.read_row_group(group, ["tokens"]).column("tokens").to_numpy()
    return tokens


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
