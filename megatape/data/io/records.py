"""Reads lines of JSON one at a time, with at most one line in memory. Skipped lines are counted."""

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, BinaryIO, NamedTuple

import orjson

from megatape.data.counts import RecordCounts
from megatape.data.io.compression import COMPRESSIONS, CORRUPTED, compressed_patterns, corruption_error, decompressed
from megatape.data.io.files import open_file, suffix

# File names of lines of JSON, without .json, because such files often have other content.
JSON_LINES = (
    "*.jsonl",
    "*.ndjson",
    *compressed_patterns(".jsonl"),
    *compressed_patterns(".ndjson"),
    *compressed_patterns(".json"),
)
# Maximum limit that a user can set.
LARGEST_RECORD_BYTES = 2**31 - 1
# Bytes read at a time while skipping a line.
SKIPPED_CHUNK_BYTES = 2**20
# Longer integers become floats. Python converts at most 4300 digits by default, in quadratic time.
MAX_DIGITS = 4000
# Byte order mark of UTF-8. Text files may start with it, and concatenated ones contain several.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Lines between two updates of the number of bytes read. Each update is a system call.
LINES_PER_UPDATE = 64


class Record(NamedTuple):
    """Record of a file or data set.

    Attributes:
        location: Location, such as `file:line`.
        value: JSON value.
    """

    location: str
    value: Any


def is_json_lines(name: str) -> bool:
    """Whether a file has lines of JSON, judging by its name."""
    return any(fnmatchcase(name.lower(), pattern) for pattern in JSON_LINES)


def read_records(path: str, max_bytes: int, counts: RecordCounts, begin: int = 0, end: int | None = None) -> Iterator[Record]:
    """Yield the lines of a file as records.

    Lines that are too long or not JSON are counted, not fatal.

    Args:
        path: Path or URL of a file, which may be compressed.
        max_bytes: Maximum line size.
        counts: Counts to update.
        begin: First byte to read of an uncompressed file. Lines are counted from there.
        end: End of the bytes to read. A line belongs to the range in which it begins. None: up to the end.

    Raises:
        OSError: The file cannot be read.
        UserError: The file is corrupted.
    """
    after = ""
    if begin:
        after = f"byte {begin:,}, line "
    read_before = counts.read_bytes
    try:
        with open_file(path) as stored:
            file = decompressed(stored, path, counts)
            for number, line in enumerate(_lines(file, max_bytes, begin, end), start=1):
                if number % LINES_PER_UPDATE == 1:
                    counts.read_bytes = read_before + stored.tell() - begin
                location = f"{path}:{after}{number}"
                if line is None:
                    counts.add_too_long(location)
                    continue
                line = line.removeprefix(BYTE_ORDER_MARK)
                if not line or line.isspace():
                    continue
                try:
                    value = parse_json_record(line)
                except orjson.JSONDecodeError as error:
                    counts.add_bad(location, f"malformed JSON ({error})")
                    continue
                yield Record(location, value)
            counts.read_bytes = read_before + stored.tell() - begin
    except CORRUPTED as error:
        raise corruption_error(path, COMPRESSIONS[suffix(path)], error) from error


def parse_json_record(content: bytes) -> Any:
    """Parse JSON in UTF-8, accepting NaN, infinite numbers and integers of any size, unlike orjson.

    Raises:
        orjson.JSONDecodeError: The content is malformed.
    """
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        try:
            record = json.loads(content.decode(), parse_int=_integer)
        except (ValueError, RecursionError):
            record = None
        if record is None or not _is_unicode(record):
            raise
        return record


def _integer(digits: str) -> int | float:
    if len(digits) > MAX_DIGITS:
        return float(digits)
    return int(digits)


def _is_unicode(value: Any) -> bool:
    """Whether all strings in a JSON value can be encoded. json.loads accepts halves of surrogate pairs."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                return False
    return True


def _lines(file: BinaryIO, max_bytes: int, begin: int, end: int | None) -> Iterator[bytes | None]:
    """Yield the lines of a file that begin in [begin, end), or None for a line longer than `max_bytes`."""
    if begin:
        # Skip the rest of a line beginning before. If a line ends at byte begin - 1, this skips its line break alone.
        file.seek(begin - 1)
        _skip(file, file.readline(SKIPPED_CHUNK_BYTES), end)
    while end is None or file.tell() < end:
        line = file.readline(max_bytes + 1)
        if not line:
            return
        if len(line) <= max_bytes or line.endswith(b"\n"):
            yield line
            continue
        _skip(file, line, end)
        yield None


def _skip(file: BinaryIO, line: bytes, end: int | None = None) -> None:
    """Read on to the end of a line, but not far beyond `end`. `line` is its start."""
    while line and not line.endswith(b"\n") and (end is None or file.tell() < end):
        line = file.readline(SKIPPED_CHUNK_BYTES)
