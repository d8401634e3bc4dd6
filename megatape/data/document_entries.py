"""Entries of `index.json` about documents: sources read them, and shards are written with them."""

from dataclasses import dataclass
from typing import Any

from megatape.data.counts import Count
from megatape.utils.paths import FileName

INDEX_FILE = "index.json"


@dataclass(frozen=True)
class DocumentTable:
    """Parquet file with a row for each document, in the order of a split's tokens. shards/table_writer.py lists its columns.

    A split has one table for each unit of the preparation with documents in this split.

    Attributes:
        file: Name of the file.
        sha256: Hash of the file.
        documents: Number of its rows.
        tokens: Number of tokens of all its documents.
    """

    file: FileName
    sha256: str
    documents: Count
    tokens: Count


@dataclass(frozen=True)
class DocumentFile:
    """File with the texts of documents kept or dropped by a preparation.

    Attributes:
        file: Name of the file.
        sha256: Hash of the stored bytes.
        documents: Number of documents in it.
    """

    file: FileName
    sha256: str
    documents: Count


@dataclass(frozen=True)
class MergedFolder:
    """One of the data directories from which a directory was merged or selected.

    Attributes:
        folder: Path of the directory.
        fingerprint: Fingerprint of its training split.
        source: `source` of its index.
        rules: `rules` of its index.
        documents: Number of its documents in each split.
    """

    folder: str
    fingerprint: str
    source: dict[str, Any]
    rules: list[dict[str, Any]]
    documents: dict[str, Count]
