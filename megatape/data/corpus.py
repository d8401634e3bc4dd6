"""Reads the documents of a source as strings, and counts them and bad records."""

import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from platform import python_version
from typing import Any

from megatape.data.records import MAX_RECORD_BYTES, RecordCounts, find_files, read_records

# Build products and installed packages in the standard library's folder would make the corpus differ between machines.
PYTHON_SKIPPED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages"}
PYTHON_SKIPPED_PREFIXES = ("config-", "_sysconfigdata")


@dataclass
class CorpusCounts(RecordCounts):
    """What a pass over a source has read so far, and what it skipped."""

    documents: int = 0
    text_bytes: int = 0
    empty: int = 0


@dataclass(frozen=True)
class Source:
    """The source of documents.

    kind              one of KINDS
    inputs            paths (c4, jsonl, text), one data set name (hub), nothing (python)
    subset            configuration of a hub data set, such as `en`
    max_documents     stop after this many documents; None reads all
    max_record_bytes  skip longer lines (c4, jsonl), files (text, python) and texts (hub); no more than that is held in memory
    """

    kind: str
    inputs: tuple[str, ...] = ()
    subset: str | None = None
    max_documents: int | None = None
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"--source {self.kind!r} is unknown: choose one of {', '.join(KINDS)}")
        if self.kind == "python" and self.inputs:
            raise ValueError(f"--source python takes no --input, got {list(self.inputs)}: remove it or name another source")
        if self.kind != "python" and not self.inputs:
            raise ValueError(f"--source {self.kind} needs --input: give at least one")
        if self.kind == "hub" and len(self.inputs) != 1:
            raise ValueError(f"--source hub takes one data set name as --input, got {list(self.inputs)}")
        if self.kind != "hub" and self.subset is not None:
            raise ValueError(f"--subset {self.subset!r} belongs to --source hub, got --source {self.kind}: remove it")
        if self.max_documents is not None and self.max_documents < 1:
            raise ValueError(f"--max-documents is {self.max_documents}: give at least 1, or leave it out to read all")
        if self.max_record_bytes < 1:
            raise ValueError(f"--max-record-bytes is {self.max_record_bytes}: give at least 1")

    def describe(self) -> dict[str, Any]:
        """What the index records about the source."""
        description: dict[str, Any] = {"kind": self.kind}
        if self.inputs:
            description["inputs"] = list(self.inputs)
        if self.subset is not None:
            description["subset"] = self.subset
        if self.max_documents is not None:
            description["max_documents"] = self.max_documents
        if self.max_record_bytes != MAX_RECORD_BYTES:
            description["max_record_bytes"] = self.max_record_bytes
        if self.kind == "python":
            description["python_version"] = python_version()
        return description


def read_documents(source: Source, counts: CorpusCounts) -> Iterator[str]:
    """Yields the non-empty documents of `source` in a fixed order and updates `counts` as it goes.

    Bad records and too long ones are counted, not fatal. Raises FileNotFoundError for a path that does not exist, and
    ValueError if no file matches, a file is corrupted or the source has no documents.
    """
    for text in _READERS[source.kind](source, counts):
        if not text or text.isspace():
            counts.empty += 1
            continue
        counts.documents += 1
        counts.text_bytes += len(text.encode())
        yield text
        if counts.documents == source.max_documents:
            return
    if counts.documents == 0:
        raise ValueError(
            f"--source {source.kind} {' '.join(source.inputs)}: no documents found ({counts.empty} empty, {counts.too_long} "
            f"longer than --max-record-bytes {source.max_record_bytes:,}, {counts.bad} bad"
            f"{', first: ' + counts.bad_examples[0] if counts.bad else ''}): check --source and --input"
        )


def _read_c4(source: Source, counts: CorpusCounts) -> Iterator[str]:
    for path in find_files(source.inputs, "c4-train.*-of-*.json.gz", recursive=False):
        yield from _read_json_lines(path, source.max_record_bytes, counts)


def _read_jsonl(source: Source, counts: CorpusCounts) -> Iterator[str]:
    for path in find_files(source.inputs, "*.jsonl", "*.jsonl.gz"):
        yield from _read_json_lines(path, source.max_record_bytes, counts)


def _read_text(source: Source, counts: CorpusCounts) -> Iterator[str]:
    for path in find_files(source.inputs, "*.txt"):
        yield from _read_text_file(path, source.max_record_bytes, counts)


def _read_python(source: Source, counts: CorpusCounts) -> Iterator[str]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if PYTHON_SKIPPED_FOLDERS.isdisjoint(parts) and not any(p.startswith(PYTHON_SKIPPED_PREFIXES) for p in parts):
            yield from _read_text_file(path, source.max_record_bytes, counts)


def _read_hub(source: Source, counts: CorpusCounts) -> Iterator[str]:
    from datasets import Features, Value, load_dataset  # takes more than a second to import, and only this source needs it

    # Explicit features: those inferred from the first block fail on later blocks that differ.
    features = Features({name: Value("string") for name in ("text", "timestamp", "url")})
    name = source.inputs[0]
    number = 0
    try:
        stream = load_dataset(name, source.subset, split="train", streaming=True, features=features)
        for number, record in enumerate(stream, start=1):
            if isinstance(record["text"], str) and len(record["text"].encode()) > source.max_record_bytes:
                counts.add_too_long(f"{name} record {number}")
            elif isinstance(record["text"], str):
                yield record["text"]
            else:
                counts.add_bad(f"{name} record {number}", "`text` is missing or not a string")
    except Exception as error:  # datasets lets any exception of its parsers, cache and network client through
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"--source hub {name} (subset {source.subset}) failed after {number} records: {type(error).__name__}: {reason}. "
            f"Streaming needs the network, and JSON files with the fields text, timestamp and url and no malformed line; "
            f"otherwise download the files and use --source c4 or jsonl, which count bad lines and continue"
        ) from error


_READERS: dict[str, Callable[[Source, CorpusCounts], Iterator[str]]] = {
    "c4": _read_c4,
    "hub": _read_hub,
    "jsonl": _read_jsonl,
    "text": _read_text,
    "python": _read_python,
}
KINDS = tuple(_READERS)


def _read_json_lines(path: Path, max_bytes: int, counts: CorpusCounts) -> Iterator[str]:
    for place, record in read_records(path, max_bytes, counts):
        text = record.get("text") if isinstance(record, dict) else None
        if isinstance(text, str):
            yield text
        else:
            counts.add_bad(place, "`text` is missing or not a string")


def _read_text_file(path: Path, max_bytes: int, counts: CorpusCounts) -> Iterator[str]:
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        counts.add_too_long(str(path))
        return
    try:
        yield content.decode()
    except UnicodeDecodeError as error:
        counts.add_bad(str(path), f"invalid UTF-8 ({error.reason} at byte {error.start})")
