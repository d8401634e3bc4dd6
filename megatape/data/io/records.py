"""Lines of JSON: read one at a time, with counts of those skipped. Memory holds no more than one line."""

import io
import json
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from gzip import BadGzipFile
from typing import Any, BinaryIO, cast

import orjson
from isal import igzip, isal_zlib

from megatape.data.counts import RecordCounts
from megatape.data.io.remote import open_file, suffix
from megatape.data.io.streams import CompressedStreamError, CompressedStreams
from megatape.errors import UserError

if sys.version_info >= (3, 14):
    from compression.zstd import CompressionParameter, ZstdError, ZstdFile
else:
    from backports.zstd import CompressionParameter, ZstdError, ZstdFile

LARGEST_RECORD_BYTES = 2**31 - 1  # that can be asked for
CHUNK_BYTES = 2**20  # read at a time of what is skipped or unpacked
# Longer integers become floats: Python converts at most 4300 digits by default, in quadratic time.
MAX_DIGITS = 4000
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
# Beginnings of compressed files.
PACKED = re.compile(rb"(?P<gzip>\x1f\x8b)|(?P<zstd>\x28\xb5\x2f\xfd)|(?P<xz>\xfd7zXZ\0)|(?P<bzip2>BZh[1-9]1AY&SY)")
ZSTD_FLAGS = 4  # Offset of the flags in a frame.
ZSTD_CHECKSUM_FLAG = 0b100
XZ_CHECK = 7  # Offset of the kind of checksum in a stream. The kind 0 is no checksum.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # of UTF-8: text files may begin with it, and what was joined of such files has several
# Errors raised for corrupted compressed files.
CORRUPTED: tuple[type[Exception], ...] = (
    EOFError,
    BadGzipFile,
    cast(Any, isal_zlib.error),
    ZstdError,
    CompressedStreamError,
)


def compressed_patterns(extension: str) -> tuple[str, ...]:
    """Return patterns for the names of compressed files, such as *.jsonl.gz for .jsonl."""
    return tuple(f"*{extension}{compression}" for compression in COMPRESSIONS)


# Names of files with lines of JSON. Files named .json alone often have other content.
JSON_LINES = (
    "*.jsonl",
    "*.ndjson",
    *compressed_patterns(".jsonl"),
    *compressed_patterns(".ndjson"),
    *compressed_patterns(".json"),
)


def is_json_lines(name: str) -> bool:
    """Whether a file has lines of JSON, judging by its name."""
    return any(fnmatchcase(name.lower(), pattern) for pattern in JSON_LINES)


def read_records(
    path: str, max_bytes: int, counts: RecordCounts, begin: int = 0, end: int | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield place (`file:line`) and value of every line of a file, by path or URL. See COMPRESSIONS for compressed files.

    begin, end: in a file that is not compressed, only lines that begin in these bytes; lines are counted from there.
    Lines that are too long or not JSON are counted, not fatal. Raises OSError, or UserError for a corrupted file.
    """
    after = f"byte {begin:,}, line " if begin else ""
    read_before = counts.read_bytes
    try:
        with open_file(path) as stored:
            file = unpacked(stored, path, counts)
            for number, line in enumerate(_lines(file, max_bytes, begin, end), start=1):
                if number % 64 == 1:  # the system is asked
                    counts.read_bytes = read_before + stored.tell() - begin
                place = f"{path}:{after}{number}"
                if line is None:
                    counts.add_too_long(place)
                    continue
                line = line.removeprefix(BYTE_ORDER_MARK)
                if not line.strip():
                    continue
                try:
                    record = parse_json_record(line)
                except orjson.JSONDecodeError as error:
                    counts.add_bad(place, f"malformed JSON ({error})")
                    continue
                yield place, record
            counts.read_bytes = read_before + stored.tell() - begin
    except CORRUPTED as error:
        raise corrupted(path, COMPRESSIONS[suffix(path)], error) from error


def parse_json_record(content: bytes) -> Any:
    """Parse JSON in UTF-8, with NaN, infinite numbers and integers of any size, which orjson refuses.

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
    """Whether all strings in a JSON value can be encoded: json.loads accepts halves of surrogate pairs."""
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


def corrupted(path: str, kind: str, error: Exception) -> UserError:
    """The message about a file of this kind, reading which raised one of CORRUPTED or the like."""
    if "requires too much memory" in str(error):  # as zstd says it
        return UserError(
            f"{path}: its zstd frames take more than 128 MiB to unpack: pack it again without --long, by unzstd --long=31 and "
            "zstd"
        )
    return UserError(f"{path}: corrupted or truncated {kind} file ({error}): download or copy it again")


def is_packed(path: str) -> bool:
    """Whether the name of a file says that it is compressed, so that only a pass from its beginning reads it."""
    return suffix(path) in COMPRESSIONS


def unpacked(stored: BinaryIO, path: str, counts: RecordCounts | None = None) -> BinaryIO:
    """Return the decompressed content of a file.

    Args:
        stored: The open file.
        path: Its path or URL.
        counts: Counts to update if the file has no checksums. None: do not count it.

    Raises:
        UserError: The compression does not match the file's name.
        Exception: One of CORRUPTED, also raised by reading: the file is empty, truncated or corrupted.
    """
    kind = COMPRESSIONS.get(suffix(path))
    begin = stored.read(10)
    if kind and not begin:  # igzip takes a file without a header for one without content
        raise EOFError("it is empty")
    packed = PACKED.match(begin)
    if packed and packed.lastgroup != kind:
        extension = next(end for end, name in COMPRESSIONS.items() if name == packed.lastgroup)
        raise UserError(f"{path}: it is compressed by {packed.lastgroup}, but its name does not end in {extension}: rename it")
    if kind and counts is not None and not _has_checksums(kind, begin):
        counts.add_unverified(path)
    stored.seek(0)
    if kind is None:
        return stored
    content: Any
    if kind == "gzip":
        content = igzip.open(stored, "rb")
    elif kind == "zstd":
        content = ZstdFile(stored)
    else:
        content = CompressedStreams(stored, kind)
    return io.BufferedReader(content, CHUNK_BYTES)  # The decoders' own buffers are small.


def _has_checksums(kind: str, begin: bytes) -> bool:
    """Whether a compressed file has checksums of its content, judging by its first bytes. gzip and bzip2 always have them."""
    if kind == "zstd" and len(begin) > ZSTD_FLAGS:
        return bool(begin[ZSTD_FLAGS] & ZSTD_CHECKSUM_FLAG)
    if kind == "xz" and len(begin) > XZ_CHECK:
        return begin[XZ_CHECK] != 0
    return True


def zstd_file(path: str) -> BinaryIO:
    """A new file to write, with a checksum that reading it verifies."""
    return cast(BinaryIO, ZstdFile(path, "wb", options={CompressionParameter.checksum_flag: 1}))


def _lines(file: BinaryIO, max_bytes: int, begin: int, end: int | None) -> Iterator[bytes | None]:
    """The lines of a file that begin in [begin, end).

    None stands for one longer than `max_bytes`, of which no more is held in memory.
    """
    if begin:
        file.seek(begin - 1)  # unless a line ends there, the first one began before
        _skip(file, file.readline(CHUNK_BYTES), end)
    while (end is None or file.tell() < end) and (line := file.readline(max_bytes + 1)):
        if len(line) <= max_bytes or line.endswith(b"\n"):
            yield line
            continue
        _skip(file, line, end)
        yield None


def _skip(file: BinaryIO, line: bytes, end: int | None = None) -> None:
    """Read on to the end of a line whose beginning was read, but not far beyond `end`."""
    while line and not line.endswith(b"\n") and (end is None or file.tell() < end):
        line = file.readline(CHUNK_BYTES)
