"""Reads the documents of a source as strings, and counts them and bad records."""

import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from gzip import BadGzipFile
from pathlib import Path
from platform import python_version
from typing import Any, BinaryIO

import orjson
from isal import igzip, isal_zlib

# Build products and installed packages in the standard library's folder would make the corpus differ between machines.
PYTHON_SKIPPED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages"}
PYTHON_SKIPPED_PREFIXES = ("config-", "_sysconfigdata")
NUM_BAD_EXAMPLES = 5
# Of a line of JSON or of a text file. A document is tokenized as a whole, which takes about 60 times its size in memory.
MAX_RECORD_BYTES = 16 * 2**20
CHUNK_BYTES = 2**20  # read at a time of what is skipped


@dataclass
class CorpusCounts:
    """What a pass over a source has read so far. too_long: records beyond Source.max_record_bytes, first_too_long: the place of
    the first. bad_examples: `place: reason` of the first few bad records."""

    documents: int = 0
    text_bytes: int = 0
    empty: int = 0
    too_long: int = 0
    first_too_long: str = ""
    bad: int = 0
    bad_examples: list[str] = field(default_factory=list)

    def add_bad(self, place: str, reason: str) -> None:
        self.bad += 1
        if len(self.bad_examples) < NUM_BAD_EXAMPLES:
            self.bad_examples.append(f"{place}: {reason}")

    def add_too_long(self, place: str) -> None:
        self.too_long += 1
        self.first_too_long = self.first_too_long or place


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
    for path in _files(source.inputs, "c4-train.*-of-*.json.gz", recursive=False):
        yield from _read_json_lines(path, source.max_record_bytes, counts)


def _read_jsonl(source: Source, counts: CorpusCounts) -> Iterator[str]:
    for path in _files(source.inputs, "*.jsonl", "*.jsonl.gz"):
        yield from _read_json_lines(path, source.max_record_bytes, counts)


def _read_text(source: Source, counts: CorpusCounts) -> Iterator[str]:
    for path in _files(source.inputs, "*.txt"):
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


def _files(inputs: tuple[str, ...], *patterns: str, recursive: bool = True) -> list[Path]:
    """The given files, and those in the given directories that match, sorted by path within each."""
    files: list[Path] = []
    for name in inputs:
        path = Path(name)
        if path.is_file():
            files.append(path)
        elif path.is_dir():
            find = path.rglob if recursive else path.glob
            matches = sorted(match for pattern in patterns for match in find(pattern) if match.is_file())
            if not matches:
                raise ValueError(f"--input {name}: no file named {' or '.join(patterns)} in this directory")
            files += matches
        else:
            raise FileNotFoundError(f"--input {name}: no such file or directory")
    return files


def _read_json_lines(path: Path, max_bytes: int, counts: CorpusCounts) -> Iterator[str]:
    compressed = path.suffix == ".gz"
    try:
        with igzip.open(path, "rb") if compressed else open(path, "rb") as file:
            for number, line in enumerate(_lines(file, max_bytes), start=1):
                if line is None:
                    counts.add_too_long(f"{path}:{number}")
                    continue
                if line.isspace():
                    continue
                try:
                    record = orjson.loads(line)  # also checks UTF-8
                except orjson.JSONDecodeError as error:
                    counts.add_bad(f"{path}:{number}", f"malformed JSON ({error})")
                    continue
                text = record.get("text") if isinstance(record, dict) else None
                if isinstance(text, str):
                    yield text
                else:
                    counts.add_bad(f"{path}:{number}", "`text` is missing or not a string")
    except (EOFError, BadGzipFile, isal_zlib.error) as error:  # type: ignore[misc]  # isal's stub declares an instance
        raise ValueError(f"{path}: corrupted or truncated gzip file ({error}): download or copy it again") from error


def _lines(file: BinaryIO, max_bytes: int) -> Iterator[bytes | None]:
    """The lines of a file, None in place of one longer than `max_bytes`, of which no more is held in memory."""
    while line := file.readline(max_bytes + 1):
        if len(line) <= max_bytes or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(CHUNK_BYTES)
        yield None


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
