"""Reads records from files with one JSON array, such as the data sets of Alpaca and litgpt, or with lines of JSON."""

import io
import json
import re
from collections.abc import Iterator

import orjson

from megatape.data.counts import RecordCounts
from megatape.data.io.compression import COMPRESSIONS, CORRUPTED, corruption_error, decompressed
from megatape.data.io.files import open_file, suffix
from megatape.data.io.records import BYTE_ORDER_MARK, Record, parse_json_record, read_records
from megatape.errors import UserError

# Characters read at a time.
CHUNK_CHARACTERS = 2**20
# Maximum number of characters in a record. A longer one counts as malformed.
MAX_ELEMENT = 2**28
SPACE = re.compile(r"\s*")


def read_json(path: str, max_bytes: int, counts: RecordCounts) -> Iterator[Record]:
    """Yield a file's records: the elements of its array, or its lines.

    Memory holds one element of an array. See `read_records` for lines.

    Args:
        path: Path or URL of a file, which may be compressed.
        max_bytes: Maximum record size. Longer ones are counted and skipped.
        counts: Counts of skipped records, to update.

    Raises:
        OSError: The file cannot be read.
        UserError: The file is corrupted, or its array is malformed.
    """
    if not begins_array(path):
        yield from read_records(path, max_bytes, counts)
        return
    try:
        with open_file(path) as stored, io.TextIOWrapper(decompressed(stored, path), "utf-8-sig") as file:
            for number, element in enumerate(_elements(path, file), start=1):
                location = f"{path}:record {number}"
                if len(element.encode(errors="replace")) > max_bytes:
                    counts.add_too_long(location)
                    continue
                try:
                    value = parse_json_record(element.encode())
                except orjson.JSONDecodeError as error:
                    counts.add_bad(location, f"malformed JSON ({error})")
                    continue
                yield Record(location, value)
    except CORRUPTED as error:
        raise corruption_error(path, COMPRESSIONS[suffix(path)], error) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: its JSON array is not UTF-8 text ({error}): convert it") from None


def begins_array(path: str) -> bool:
    """Whether a file contains one array instead of a value per line. Raises OSError."""
    try:
        with open_file(path) as stored:
            start = decompressed(stored, path).read(CHUNK_CHARACTERS)
    except CORRUPTED:
        # Reading the file reports the error.
        return False
    start = start.removeprefix(BYTE_ORDER_MARK).lstrip()
    if not start.startswith(b"["):
        return False
    first_line, _, further_lines = start.partition(b"\n")
    has_array_per_line = further_lines.strip() and _is_json(first_line)
    return not has_array_per_line


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _elements(path: str, file: io.TextIOBase) -> Iterator[str]:
    """Yield the text of each element of the array in a file. Raises UserError, naming `path`, if it is malformed."""
    text = file.read(CHUNK_CHARACTERS)
    number = 0
    # Index after the opening bracket.
    index = _skip_space(text, 0) + 1
    is_open = True
    while is_open:
        end = _element_end(text, index)
        if end is not None:
            number += 1
            yield text[index : end - 1].strip()
            index = end
            is_open = text[end - 1] == ","
            continue
        text = text[index:]
        index = 0
        if number == 0 and text.lstrip()[:1] == "]":
            index = text.index("]") + 1
            break
        # The size doubles, so the time for long records is linear.
        more = file.read(max(CHUNK_CHARACTERS, len(text)))
        if not more or len(text) > MAX_ELEMENT:
            raise _malformed(path, f"record {number + 1}", text)
        text += more
    text_after_array = text[index:].strip() or file.read(CHUNK_CHARACTERS).strip()
    if text_after_array:
        raise _malformed(path, "the text after the last record", text_after_array)


def _malformed(path: str, what: str, text: str) -> UserError:
    return UserError(
        f"{path}: {what} of its JSON array is malformed or cut off, near {text.strip()[:40]!r}: download the file again, or "
        "write a record in each line, for example by `jq -c '.[]'`"
    )


def _element_end(text: str, begin: int) -> int | None:
    """Return the position after the comma or bracket ending an element, or None if the element is incomplete."""
    try:
        _, end = json.JSONDecoder().raw_decode(text, _skip_space(text, begin))
    except (ValueError, RecursionError):
        return None
    end = _skip_space(text, end)
    if text[end : end + 1] not in (",", "]"):
        return None
    return end + 1


def _skip_space(text: str, begin: int) -> int:
    match = SPACE.match(text, begin)
    assert match is not None
    return match.end()
