"""Files with a JSON object a line, which grow while other processes read them and a killed one may leave torn."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_LINE_BYTES = 2**20  # a longer line is not read: ours have less than a tenth of this


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every line that is a JSON object of at most MAX_LINE_BYTES, and the object; no file, no lines."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        begins = True  # a line, not the next part of one that is too long
        while part := file.readline(MAX_LINE_BYTES):
            whole, begins = begins and len(part) < MAX_LINE_BYTES, part.endswith(b"\n")
            if not whole:
                continue
            try:
                text = part.decode("utf-8").rstrip("\r\n")
                entry = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict):
                yield text, entry


def append_lines(path: Path, entries: Iterable[dict[str, Any]], durable: bool = True) -> None:
    """Add a line for each object.

    Args:
        path: The file, which is created if needed.
        entries: The objects.
        durable: The lines are on disk when this returns, and other hosts see them on a shared file system.

    Raises:
        OSError: The file cannot be written. Some of the lines may be in it.
    """
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")  # a torn last line must not spoil the next one
        file.writelines(json.dumps(entry).encode() + b"\n" for entry in entries)
        file.flush()
        if durable:
            os.fsync(file.fileno())
