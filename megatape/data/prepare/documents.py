"""The documents of a unit as lines of JSON: `documents-*.jsonl.zst` has those that are kept, `dropped-*.jsonl.zst` the others.

Attributes of a line:
    text, url, place: Of the document; of one that is dropped the text that the rule got.
    scores: By the rules that give one.
    edited: Names of the rules that changed the text.
    reason: Why it is dropped, as the ledger names it; empty if it is kept.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from megatape.data.counts import RecordCounts
from megatape.data.document_entries import DocumentFile
from megatape.data.io.compression import zstd_file
from megatape.data.io.records import LARGEST_RECORD_BYTES, read_records
from megatape.data.printable import printable
from megatape.data.shards.hashes import file_sha256
from megatape.data.sources.document import Decision, Document
from megatape.data.sources.kept_documents import DOCUMENTS, DROPPED, SUFFIX


class DocumentFiles:
    """Writes both files into a folder. They are complete once closed.

    Args:
        folder: The folder.
        part: Part of the names of its files that no other unit has.
    """

    def __init__(self, folder: Path, part: str) -> None:
        self._folder = folder
        self._names = {kind: f"{kind}-{part}{SUFFIX}" for kind in (DOCUMENTS, DROPPED)}
        self._files = {kind: zstd_file(str(folder / name)) for kind, name in self._names.items()}
        self._counts = dict.fromkeys(self._names, 0)

    def close(self) -> None:
        """Complete the files."""
        for file in self._files.values():
            if not file.closed:
                file.write(b"")  # Writes the zstd header, because readers take an empty file for a failed download.
                file.close()

    def entries(self) -> list[DocumentFile]:
        """Complete the files. Returns their entries in the index."""
        self.close()
        return [DocumentFile(name, file_sha256(self._folder / name), self._counts[kind]) for kind, name in self._names.items()]

    def record(self, document: Document, decision: Decision) -> None:
        """Write a document and what was decided about it."""
        text = decision.edits[-1][1] if decision.edits else document.text
        record = {"text": text, "url": document.url, "place": printable(document.place), "scores": decision.scores}
        self._write(record | {"edited": [rule for rule, _ in decision.edits], "reason": decision.label})

    def compared(self, draft: Path, drops: np.ndarray, rules: Sequence[str]) -> None:
        """Write the documents of a unit's draft, of which comparisons with other units drop some, by `Draft.drops`."""
        others, dropped = (
            read_records(str(draft / name), LARGEST_RECORD_BYTES, RecordCounts()) for name in self._names.values()
        )
        for _, record in dropped:
            self._write(record)
        for (_, record), drop in zip(others, drops.tolist(), strict=True):
            self._write(record | {"reason": rules[drop - 1]} if drop else record)

    def _write(self, record: dict[str, Any]) -> None:
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        kind = DROPPED if record["reason"] else DOCUMENTS
        self._files[kind].write(line)
        self._counts[kind] += 1


def describe_documents(path: Path) -> DocumentFile:
    """Return the index entry of a file written by an earlier version."""
    num_documents = sum(1 for _ in read_records(str(path), LARGEST_RECORD_BYTES, RecordCounts()))
    return DocumentFile(path.name, file_sha256(path), num_documents)
