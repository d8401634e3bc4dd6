"""Files with one JSON object per line. They grow while others read them, and a killed process may leave a torn line."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from megatape.errors import UserError
from megatape.utils.files.files import open_in_place, open_regular
from megatape.utils.files.full_disk import named_if_full

# Maximum line size. Longer lines are skipped. Our lines are less than a tenth of this.
MAX_LINE_BYTES = 2**20


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line and its JSON object, skipping other lines and those above MAX_LINE_BYTES. A missing file has no lines.

    Raises:
        OSError: The file cannot be read.
        UserError: The file is a pipe or device, which may never end.
    """
    with suppress(FileNotFoundError), open_regular(path) as file:
        # Whether the next part starts a line, instead of continuing one that is too long.
        begins_line = True
        while part := file.readline(MAX_LINE_BYTES):
            is_whole_line = begins_line and len(part) < MAX_LINE_BYTES
            begins_line = part.endswith(b"\n")
            if not is_whole_line:
                continue
            try:
                text = part.decode("utf-8").rstrip("\r\n")
                entry = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict):
                yield text, entry


def json_line(entry: dict[str, Any], path: Path) -> bytes:
    """Encode an object as a line for `read_lines`.

    Args:
        entry: Object to encode.
        path: File, for error messages.

    Raises:
        UserError: The line would be too long to be read again.
    """
    line = json.dumps(entry).encode() + b"\n"
    if len(line) >= MAX_LINE_BYTES:
        raise UserError(f"{path}: a line of {len(line):,} bytes could not be read again: the limit is {MAX_LINE_BYTES - 1:,}")
    return line


def append_lines(path: Path, entries: Iterable[dict[str, Any]], durable: bool = True) -> None:
    """Append one line per object, creating the file if needed.

    Args:
        path: File to extend.
        entries: Objects to write.
        durable: Whether to return only once the lines are on disk, where other hosts see them on a shared file system.

    Raises:
        OSError: The file cannot be written. It may have some of the lines.
        PathError: The file is a link, a pipe or a device.
        UserError: A line is too long for `read_lines`. Nothing was written.
    """
    lines = [json_line(entry, path) for entry in entries]
    with open_in_place(path) as file, named_if_full(path):
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                # End a torn last line, so that it does not spoil the next one.
                file.write(b"\n")
        file.writelines(lines)
        file.flush()
        if durable:
            os.fsync(file.fileno())
