"""A data directory from which another one is made."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from megatape.data.document_entries import DocumentTable, MergedFolder
from megatape.data.shards.entries import SPLITS, Index
from megatape.data.shards.hashes import check_file
from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit


@dataclass(frozen=True)
class InputFolder:
    """A data directory from which another one is made.

    Attributes:
        path: Path of the directory.
        index: Its index.
    """

    path: Path
    index: Index

    @classmethod
    def open(cls, path: Path) -> "InputFolder":
        """Read the index of a data directory.

        Raises:
            FileNotFoundError, UserError: The index is missing or corrupted.
        """
        return cls(path, load_index(path))

    @cached_property
    def origins(self) -> list[MergedFolder]:
        """Origin of its documents: the folder itself, or the folders from which it was merged."""
        index = self.index
        if index.merged:
            return index.merged
        documents = {name: split.documents for name, split in index.splits.items()}
        return [MergedFolder(str(self.path), index.fingerprint("train"), index.source, index.rules, documents)]

    def tables(self) -> dict[str, list[DocumentTable]]:
        """Return the tables of documents by split, after checking their files.

        Raises:
            FileNotFoundError, UserError: A table is missing or corrupted.
        """
        tables = {split: self.index.document_tables.get(split, []) for split in SPLITS}
        for of_split in tables.values():
            for table in of_split:
                check_file(self.path / table.file, table.sha256)
        return tables

    def text_hashes(self, split: str) -> np.ndarray:
        """Return the hashes of the texts of a split's documents, uint64.

        Raises:
            FileNotFoundError, UserError: The tables are missing or corrupted, or have no hashes.
        """
        hashes = StoredSplit(self.path, split).tables.hashes()
        return np.concatenate([np.empty(0, np.uint64), *hashes])

    def places(self, split: str, hashes: np.ndarray) -> set[tuple[int, str]]:
        """Return hash and place of the documents of a split whose hash is in `hashes`.

        Args:
            split: Name of the split.
            hashes: Hashes of texts, uint64 [n].
        """
        found: set[tuple[int, str]] = set()
        for rows, _ in StoredSplit(self.path, split).tables.each():
            row_hashes = rows["hash"].to_numpy()
            is_wanted = np.isin(row_hashes, hashes)
            places = rows["place"].filter(is_wanted).to_pylist()
            found.update(zip(row_hashes[is_wanted].tolist(), places, strict=True))
        return found
