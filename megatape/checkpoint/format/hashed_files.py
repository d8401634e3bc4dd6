"""Files with recorded size and hash: hashed while writing, and synced to disk."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from megatape.checkpoint.format.records import FileRecord
from megatape.utils.files.files import create_file, open_regular
from megatape.utils.files.full_disk import named_if_full
from megatape.utils.files.json_files import json_content


def hash_file(path: Path) -> FileRecord:
    """Return the size and hash of an existing file. For new files, `write_file` returns them."""
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256")
    return FileRecord(bytes=path.stat().st_size, sha256=digest.hexdigest())


def write_file(path: Path, parts: Iterable[bytes | memoryview]) -> FileRecord:
    """Write a file and wait until it is on disk.

    Args:
        path: File to write. It must not exist.
        parts: Content, in parts.

    Returns:
        Size and hash, computed from `parts`, so that a file altered meanwhile fails verification.

    Raises:
        OSError: A file or link with this name exists, or the file cannot be written.
    """
    digest = hashlib.sha256()
    size = 0
    with named_if_full(path), create_file(path) as file:
        for part in parts:
            file.write(part)
            digest.update(part)
            size += len(part)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(bytes=size, sha256=digest.hexdigest())


def as_json(value: Any, name: str = "a file") -> bytes:
    """Encode a checkpoint's JSON file.

    Args:
        value: Value to encode.
        name: File name for error messages.

    Raises:
        UserError: The file would be too large or too deeply nested for reading it again.
    """
    return json_content(value, name, indent=1)
