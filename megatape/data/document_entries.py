"""Entries of `index.json` about documents, used by sources when reading and by shards when writing."""

from dataclasses import dataclass
from typing import Any

from megatape.data.counts import Count
from megatape.utils.files.paths import FileName

INDEX_FILE = "index.json"


@dataclass(frozen=True)
class DocumentTable:
    """Parquet file with a row per document, in the order of a split's tokens. shards/tables/table_writer.py lists its columns.

    A split has one table for each unit with documents in this split.

    Attributes:
        file: File name.
        sha256: Hash of the file.
        documents: Number of rows.
        tokens: Tokens in all documents.
    """

    file: FileName
    sha256: str
    documents: Count
    tokens: Count


@dataclass(frozen=True)
class DocumentFile:
    """File with the texts of documents kept or dropped by a preparation.

    Attributes:
        file: File name.
        sha256: Hash of the stored bytes.
        documents: Number of documents.
    """

    file: FileName
    sha256: str
    documents: Count


@dataclass(frozen=True)
class MergedFolder:
    """Data directory from which another one was merged or selected.

    Attributes:
        folder: Path of the directory.
        fingerprint: Fingerprint of the training split.
        source: `source` of the index.
        rules: `rules` of the index.
        documents: Documents by split.
    """

    folder: str
    fingerprint: str
    source: dict[str, Any]
    rules: list[dict[str, Any]]
    documents: dict[str, Count]
