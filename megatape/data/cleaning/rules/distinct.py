"""Drops documents that other data directories already contain."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from megatape.data.cleaning.rule import DocumentDropped, TextRule
from megatape.data.cleaning.word_runs import contains
from megatape.data.shards.entries import Index
from megatape.data.shards.hashes import content_hash, document_hash, table_hashes
from megatape.data.shards.index import load_index
from megatape.data.shards.tables.document_tables import DocumentTables


@dataclass(frozen=True)
class Distinct(TextRule):
    """Drops documents contained in one of `folders`, comparing their texts after all other rules.

    Attributes:
        folders: Data directories. Their document tables list text hashes.
    """

    is_last: ClassVar[bool] = True
    folders: Annotated[tuple[str, ...], Field(min_length=1)]

    def describe(self) -> dict[str, Any]:
        tables = {folder: content_hash(index.document_tables) for folder, index in self._indices.items()}
        return super().describe() | {"sha256": tables}

    def check(self) -> None:
        for folder in self.folders:
            for tables in self._tables(folder):
                for _ in tables.isolate().hashes():
                    pass

    @cached_property
    def _indices(self) -> dict[str, Index]:
        return {folder: load_index(Path(folder)) for folder in self.folders}

    def _tables(self, folder: str) -> Iterator[DocumentTables]:
        index = self._indices[folder]
        for split in index.splits:
            yield DocumentTables(Path(folder), index, split)

    @cached_property
    def _hashes(self) -> dict[str, np.ndarray]:
        """Folder -> hashes of its documents, sorted, uint64. They take eight bytes per document in each process."""
        all_hashes = {}
        for folder, index in self._indices.items():
            num_documents = 0
            for entries in index.document_tables.values():
                num_documents += sum(table.documents for table in entries)
            hashes = np.empty(num_documents, np.uint64)
            begin = 0
            for tables in self._tables(folder):
                for part in tables.hashes():
                    end = begin + part.size
                    hashes[begin:end] = part
                    begin = end
            hashes.sort()
            all_hashes[folder] = hashes
        return all_hashes

    def apply(self, text: str) -> str:
        digest = document_hash(text.encode())
        text_hash = table_hashes([digest])
        for folder, hashes in self._hashes.items():
            if contains(hashes, text_hash):
                raise DocumentDropped(f"in {folder}")
        return text
