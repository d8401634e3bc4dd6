"""Reads the tables of documents of a split: how long each document is and where it comes from. writer.py has their columns."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from megatape.data.shards.index import DocumentTable, Index, file_sha256
from megatape.errors import MissingPath, UserError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile


@dataclass(frozen=True)
class DocumentMatch:
    """The document to which a token belongs.

    Attributes:
        number: Its number in the split, from 0.
        first: Its first token in the split's stream.
        tokens: Number of its tokens.
        bytes: Size of its text in UTF-8.
        place: Place in the source.
        url: Address at which the source found it, or empty.
    """

    number: int
    first: int
    tokens: int
    bytes: int
    place: str
    url: str


class DocumentTables:
    """The tables of one split. Raises UserError if the folder has none."""

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

    def find(self, token: int) -> DocumentMatch:
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
                    return DocumentMatch(number + row, int(ends[row] - tokens[row]), **content)
                number, first = number + tokens.size, int(ends[-1])
        raise UserError(f"{self._directory}: corrupted, its tables of documents end before token {token:,}: prepare it again")

    def _open(self, table: DocumentTable) -> "ParquetFile":
        """Raises FileNotFoundError, or UserError if it is not the file that the index lists."""
        from pyarrow.parquet import ParquetFile

        path = self._directory / table.file
        if not path.is_file():
            raise MissingPath(f"{path}: not found, a table of documents: copy it again or re-run the preparation")
        if (found := file_sha256(path)) != table.sha256:
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
