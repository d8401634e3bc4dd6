"""Documents of a unit as lines of JSON: `documents-*.jsonl.zst` has the kept ones, `dropped-*.jsonl.zst` the others.

Fields of a line:
    text: Text of the document; of a dropped one, the text given to the rule that drops it.
    url: Address of the document.
    place: Place of the document in the source.
    scores: Scores by the rules that give one.
    edited: Names of the rules that changed the text.
    reason: Reason for which it is dropped, as in the ledger; empty if it is kept.
"""

from collections.abc import Iterator, Sequence
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
        folder: Folder of the files.
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
                # Writes the zstd header, because readers take an empty file for a failed download.
                file.write(b"")
                file.close()

    def entries(self) -> list[DocumentFile]:
        """Complete the files. Returns their entries in the index."""
        self.close()
        return [DocumentFile(name, file_sha256(self._folder / name), self._counts[kind]) for kind, name in self._names.items()]

    def record(self, document: Document, decision: Decision) -> None:
        """Write a document and the decision about it."""
        text = document.text
        if decision.edits:
            _, text = decision.edits[-1]
        self._write(
            {
                "text": text,
                "url": document.url,
                "place": printable(document.place),
                "scores": decision.scores,
                "edited": [rule for rule, _ in decision.edits],
                "reason": decision.label,
            }
        )

    def add_first_pass(self, folder: Path, dropped_by: np.ndarray, rules: Sequence[str]) -> None:
        """Write the documents of a first pass, some of which are dropped because of documents in other units.

        Args:
            folder: Folder with the files of the first pass.
            dropped_by: Result of `FirstPassUnit.dropped_by`.
            rules: Name of the rule behind each comparison.
        """
        for record in self._read(folder, DROPPED):
            self._write(record)
        for record, comparison in zip(self._read(folder, DOCUMENTS), dropped_by.tolist(), strict=True):
            if comparison:
                record["reason"] = rules[comparison - 1]
            self._write(record)

    def _read(self, folder: Path, kind: str) -> Iterator[dict[str, Any]]:
        for _, record in read_records(str(folder / self._names[kind]), LARGEST_RECORD_BYTES, RecordCounts()):
            yield record

    def _write(self, record: dict[str, Any]) -> None:
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        kind = DOCUMENTS
        if record["reason"]:
            kind = DROPPED
        self._files[kind].write(line)
        self._counts[kind] += 1


def describe_documents(path: Path) -> DocumentFile:
    """Return the index entry of a file written by an earlier version."""
    num_documents = sum(1 for _ in read_records(str(path), LARGEST_RECORD_BYTES, RecordCounts()))
    return DocumentFile(path.name, file_sha256(path), num_documents)
