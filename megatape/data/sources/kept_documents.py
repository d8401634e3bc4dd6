"""Checks document files, kept by a preparation, against the index of their folder.

If a file were missing, the next preparation would lack its documents. A file of another preparation could repeat documents, or
contain dropped ones.
"""

import hashlib
import logging
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from posixpath import basename, dirname, join
from typing import Any

import orjson

from megatape.data.document_entries import INDEX_FILE, DocumentFile, DocumentTable, MergedFolder
from megatape.data.io.files import file_states, open_file
from megatape.errors import UserError, content_errors
from megatape.utils.values.validation import as_type

LOG = logging.getLogger(__name__)

# Parts of the file names.
DOCUMENTS = "documents"
DROPPED = "dropped"
SUFFIX = ".jsonl.zst"
# File names of a unit's documents, and of its document tables.
UNIT = re.compile(rf"{DOCUMENTS}-(\d+)(?:-\w+)?{re.escape(SUFFIX)}")
TABLE = re.compile(r"(?:train|validation)(?:-(\d+))?-documents\.parquet")
# Maximum number of names in a message.
NUM_SHOWN = 3


@dataclass(frozen=True)
class KeptDocuments:
    """Index entries of a folder about the documents in its files.

    Attributes:
        source: Document source.
        rules: Rules applied to the source.
        document_files: Document files, kept and dropped; empty if an earlier version wrote the folder.
        document_tables: Document tables by split.
        merged: Folders whose documents were added.
    """

    source: dict[str, Any]
    rules: list[dict[str, Any]] = field(default_factory=list)
    document_files: list[DocumentFile] = field(default_factory=list)
    document_tables: dict[str, list[DocumentTable]] = field(default_factory=dict)
    merged: list[MergedFolder] = field(default_factory=list)

    @property
    def is_earlier(self) -> bool:
        """Whether an earlier version wrote the folder. Its index lists no document files."""
        return not self.document_files

    def entry(self, name: str) -> DocumentFile | None:
        """Return the entry of a file by its name, or None if the file does not belong to this folder.

        For an earlier version, the entry is derived from the document tables: every unit has a document file and,
        unless all were dropped, a table per split. The hash is then empty.
        """
        if not self.is_earlier:
            return self._entries.get(name)
        unit = UNIT.fullmatch(name)
        if unit is None:
            return None
        return DocumentFile(name, "", self._documents_by_unit.get(int(unit[1]), 0))

    def missing(self, names: AbstractSet[str]) -> list[str]:
        """Return the files of kept documents missing from these names, in order."""
        if not self.is_earlier:
            return [name for name in self._entries if name.startswith(f"{DOCUMENTS}-") and name not in names]
        units = set()
        for name in names:
            match = UNIT.fullmatch(name)
            if match:
                units.add(int(match[1]))
        return [f"{DOCUMENTS}-{number:05d}{SUFFIX}" for number in sorted(self._documents_by_unit.keys() - units)]

    @cached_property
    def _entries(self) -> dict[str, DocumentFile]:
        return {entry.file: entry for entry in self.document_files}

    @cached_property
    def _documents_by_unit(self) -> dict[int, int]:
        """Unit -> number of kept documents, by the document tables. Units without any are omitted."""
        counts: dict[int, int] = {}
        for tables in self.document_tables.values():
            for table in tables:
                match = TABLE.fullmatch(table.file)
                if match:
                    number = int(match[1] or 0)
                    counts[number] = counts.get(number, 0) + table.documents
        return counts


def kept_documents(folder: str) -> KeptDocuments:
    """Read the index of a folder whose documents were kept.

    Args:
        folder: Path or URL.

    Raises:
        UserError: The index is corrupted, or the folder has more documents than its files.
        OSError: The index is missing.
    """
    path = join(folder, INDEX_FILE)
    (state,) = file_states([path])
    documents = _read(path, state.version)
    if documents.merged:
        raise UserError(
            f"{folder} was merged, so its files of documents have only a part of its documents: give the folders that were "
            "merged into it"
        )
    return documents


@lru_cache
def _read(path: str, version: str) -> KeptDocuments:
    with open_file(path) as file, content_errors(f"{path}: corrupted", "copy it again or re-run the preparation"):
        return as_type(orjson.loads(file.read()), KeptDocuments)


def check_files(folder: str, names: AbstractSet[str], is_complete: bool) -> None:
    """Check document files against the index of their folder.

    Args:
        folder: Path or URL of the folder.
        names: Some file names in it.
        is_complete: Whether no file may be missing from these names.

    Raises:
        UserError: A file is missing or does not belong to this folder.
    """
    documents = kept_documents(folder)
    unknown = sorted(name for name in names if documents.entry(name) is None)
    if unknown:
        raise UserError(
            f"{join(folder, unknown[0])}: the folder's {INDEX_FILE} does not list it, so it belongs to another preparation: "
            "move it away"
        )
    missing: list[str] = []
    if is_complete:
        missing = documents.missing(names)
    if missing:
        file_names = ", ".join(missing[:NUM_SHOWN])
        if len(missing) > NUM_SHOWN:
            file_names += f" and {len(missing) - NUM_SHOWN:,} more"
        raise UserError(
            f"{folder}: files of documents that its {INDEX_FILE} lists are missing: {file_names}. Copy them again, or give "
            "the other files by name to prepare a part of the documents"
        )
    if documents.is_earlier:
        _warn_earlier(folder)


@cache
def _warn_earlier(folder: str) -> None:
    LOG.warning(
        f"{folder} was written by an earlier version, whose {INDEX_FILE} has no hashes of the files of documents: only their "
        "numbers of documents are checked"
    )


def check_content(path: str) -> DocumentFile:
    """Check the hash of a document file at a path or URL. Returns its index entry.

    Raises:
        UserError: The file differs from its index entry.
        OSError: The file cannot be read.
    """
    entry = kept_documents(dirname(path)).entry(basename(path))
    if entry is None:
        raise UserError(f"{path}: the folder's {INDEX_FILE} does not list it: move it away")
    if entry.sha256:
        with open_file(path) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # BinaryIO has readinto
        if sha256 != entry.sha256:
            raise UserError(
                f"{path}: sha256 is {sha256}, the folder's {INDEX_FILE} says {entry.sha256}: it is corrupted or belongs to "
                "another preparation, copy it again"
            )
    return entry


def check_count(path: str, entry: DocumentFile, num_documents: int) -> None:
    """Raise UserError if a file, read completely, has another number of documents than its index entry."""
    if num_documents != entry.documents:
        raise UserError(
            f"{path}: {num_documents:,} documents, but {entry.documents:,} by the folder's {INDEX_FILE}: it belongs to "
            "another preparation, copy it again"
        )
