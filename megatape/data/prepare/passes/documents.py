"""Texts of a unit's documents as lines of JSON: `documents-*.jsonl.zst` has the kept ones, `dropped-*.jsonl.zst` the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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


@dataclass(frozen=True)
class DocumentLine:
    """A line. The fields are its keys, in order.

    Attributes:
        text: Text of a kept document. For a dropped one, the text that the dropping rule read.
        url: Address.
        place: Location in the source.
        scores: Scores by rule.
        edited: Rules that changed the text.
        reason: Reason for dropping the document, as in the ledger; empty if it is kept.
    """

    text: str
    url: str
    place: str
    scores: Mapping[str, float]
    edited: list[str]
    reason: str


class DocumentFiles:
    """Writes both files of a unit into a folder. They are complete once closed.

    Args:
        folder: Folder to write into.
        part: File name part, unique to the unit.
    """

    def __init__(self, folder: Path, part: str) -> None:
        self._folder = folder
        self._names = {kind: f"{kind}-{part}{SUFFIX}" for kind in (DOCUMENTS, DROPPED)}
        self._files = {kind: zstd_file(str(folder / name)) for kind, name in self._names.items()}
        self._counts = dict.fromkeys(self._names, 0)

    def close(self) -> None:
        for file in self._files.values():
            if not file.closed:
                # Writes the zstd header, because readers take an empty file for a failed download.
                file.write(b"")
                file.close()

    def entries(self) -> list[DocumentFile]:
        """Complete the files. Returns their index entries."""
        self.close()
        return [DocumentFile(name, file_sha256(self._folder / name), self._counts[kind]) for kind, name in self._names.items()]

    def record(self, document: Document, decision: Decision) -> None:
        """Write a document and the decision about it."""
        text = document.text
        if decision.edits:
            text = decision.edits[-1].text
        self._write(
            DocumentLine(
                text=text,
                url=document.url,
                place=printable(document.location),
                scores=decision.scores,
                edited=[edit.rule for edit in decision.edits],
                reason=decision.label,
            )
        )

    def add_first_pass(self, folder: Path, dropped_by: np.ndarray, rules: Sequence[str]) -> None:
        """Write the documents of a first pass, dropping those that the decision pass drops.

        Args:
            folder: Folder of the first pass.
            dropped_by: Result of `FirstPassUnit.dropped_by`.
            rules: Rules that `dropped_by` counts, in order.
        """
        for line in self._read(folder, DROPPED):
            self._write(line)
        for line, rule_number in zip(self._read(folder, DOCUMENTS), dropped_by.tolist(), strict=True):
            if rule_number:
                line = replace(line, reason=rules[rule_number - 1])
            self._write(line)

    def _read(self, folder: Path, kind: str) -> Iterator[DocumentLine]:
        for record in read_records(str(folder / self._names[kind]), LARGEST_RECORD_BYTES, RecordCounts()):
            yield DocumentLine(**record.value)

    def _write(self, line: DocumentLine) -> None:
        kind = DOCUMENTS
        if line.reason:
            kind = DROPPED
        self._files[kind].write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self._counts[kind] += 1


def describe_documents(path: Path) -> DocumentFile:
    """Return the index entry of a file written by an earlier version."""
    num_documents = sum(1 for _ in read_records(str(path), LARGEST_RECORD_BYTES, RecordCounts()))
    return DocumentFile(path.name, file_sha256(path), num_documents)
