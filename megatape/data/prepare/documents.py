"""The documents of a unit as lines of JSON: `documents.jsonl.zst` has those that are kept, `dropped.jsonl.zst` the others.

text, url, place   of the document; of one that is dropped the text that the rule got
scores             by the rules that give one
edited             names of the rules that changed the text
reason             why it is dropped, as the ledger names it
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson

from megatape.data.io.records import LARGEST_RECORD_BYTES, RecordCounts, ZstdFile, printable, read_records
from megatape.data.sources.documents import DOCUMENTS, SUFFIX
from megatape.data.sources.source import Decision, Document

DROPPED = "dropped"


class DocumentFiles:
    """Writes both files into `folder`. They are complete when the `with` block ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files = {name: ZstdFile(folder / f"{name}{SUFFIX}", "wb") for name in (DOCUMENTS, DROPPED)}

        for file in self._files.values():
            file.write(b"")  # also one without documents has a header: an empty one would be a failed download

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def record(self, document: Document, decision: Decision) -> None:
        """Write a document and what was decided about it."""
        text = decision.edits[-1][1] if decision.edits else document.text
        record = {"text": text, "url": document.url, "place": printable(document.place)}
        optional = {"scores": decision.scores, "edited": [rule for rule, _ in decision.edits]}
        self._write(record | {name: value for name, value in optional.items() if value}, decision.label)

    def compared(self, draft: Path, drops: np.ndarray, rules: Sequence[str]) -> None:
        """Write the documents of a unit's draft, of which comparisons with other units drop some, by `Draft.drops`."""
        for record in _read(draft / f"{DROPPED}{SUFFIX}"):
            self._write(record, record["reason"])
        for record, drop in zip(_read(draft / f"{DOCUMENTS}{SUFFIX}"), drops.tolist(), strict=True):
            self._write(record, rules[drop - 1] if drop else "")

    def _write(self, record: dict[str, Any], reason: str) -> None:
        line = orjson.dumps(record | {"reason": reason} if reason else record, option=orjson.OPT_APPEND_NEWLINE)
        self._files[DROPPED if reason else DOCUMENTS].write(line)


def _read(path: Path) -> Iterator[dict[str, Any]]:
    return (record for _, record in read_records(str(path), LARGEST_RECORD_BYTES, RecordCounts()))
