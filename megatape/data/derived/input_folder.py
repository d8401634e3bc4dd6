"""Data directory to make another one from."""

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
    """Data directory to make another one from.

    Attributes:
        path: Data directory.
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
        """Origins of its documents: the directory itself, or the ones that it was merged from."""
        index = self.index
        if index.merged:
            return index.merged
        documents = {name: split.documents for name, split in index.splits.items()}
        return [MergedFolder(str(self.path), index.fingerprint("train"), index.source, index.rules, documents)]

    def tables(self) -> dict[str, list[DocumentTable]]:
        """Return the document tables by split, after checking their files.

        Raises:
            FileNotFoundError, UserError: A table is missing or corrupted.
        """
        tables = {split: self.index.document_tables.get(split, []) for split in SPLITS}
        for of_split in tables.values():
            for table in of_split:
                check_file(self.path / table.file, table.sha256)
        return tables

    def text_hashes(self, split: str) -> np.ndarray:
        """Return the text hashes of a split's documents, uint64.

        Raises:
            FileNotFoundError, UserError: The tables are missing or corrupted, or have no hashes.
        """
        hashes = StoredSplit(self.path, split).tables.hashes()
        return np.concatenate([np.empty(0, np.uint64), *hashes])

    def locations(self, split: str, hashes: np.ndarray) -> set[tuple[int, str]]:
        """Return (hash, location) for the documents of a split whose hash is in `hashes`.

        Args:
            split: Split name.
            hashes: Text hashes, uint64 [n].
        """
        locations: set[tuple[int, str]] = set()
        for rows, _ in StoredSplit(self.path, split).tables.each():
            row_hashes = rows["hash"].to_numpy()
            is_match = np.isin(row_hashes, hashes)
            row_locations = rows["place"].filter(is_match).to_pylist()
            locations.update(zip(row_hashes[is_match].tolist(), row_locations, strict=True))
        return locations
