"""Opens and copies files at paths and URLs, and reads their states."""

import io
import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, cast
from urllib.parse import unquote

from megatape.data.io.remote_file import RemoteFile
from megatape.errors import PathError
from megatape.utils.files.files import create_file

URL = re.compile(r"[a-z][a-z0-9+.-]+://")
LOCAL = "file://"
BUFFER_BYTES = 2**18
# Minimum size of a direct read. With a larger one, each small file would take memory from the system.
MIN_READ_BYTES = 2**16
# Number of bytes copied at a time.
COPY_BYTES = 8 * 2**20
# Number of simultaneous requests.
NUM_REQUESTS = 16


class FileState(NamedTuple):
    """State of a stored file.

    Attributes:
        size: Size in bytes.
        version: Size and modification time in nanoseconds; for a URL, size and the server's tag for the content, if any.
    """

    size: int
    version: str


def is_url(name: str) -> bool:
    """Whether `name` is a URL, including file://."""
    # Most names are paths, and the first test is fast.
    return "://" in name and URL.match(name) is not None


def local_path(name: str) -> Path | None:
    """Return the local path of a path or file:// URL, or None for a URL that needs a server."""
    if not is_url(name):
        return Path(name)
    if not name.startswith(LOCAL):
        return None
    path = name.removeprefix(LOCAL).removeprefix("localhost")
    # URLs of files with a percent sign in their names are often not quoted.
    if os.path.exists(path):
        return Path(path)
    return Path(unquote(path))


def suffix(name: str) -> str:
    """Return the last suffix of a path or URL in lower case, such as `.gz`."""
    if is_url(name):
        name = name.partition("?")[0]
    return PurePosixPath(name).suffix.lower()


def open_file(name: str) -> BinaryIO:
    """Open a file to read, with seeking.

    Raises:
        OSError: The file cannot be opened or, later, read.
        UserError: The protocol is unknown.
        ModuleNotFoundError: The package of the protocol is not installed.
    """
    if not is_url(name):
        return open(name, "rb")
    path = local_path(name)
    if path is not None:
        return path.open("rb")
    return cast(BinaryIO, io.BufferedReader(RemoteFile(name), BUFFER_BYTES))


def read_beginning(name: str, max_bytes: int) -> bytes:
    """Return the content of a file, or its first `max_bytes` bytes. Raises like `open_file`.

    It is fast for small files: a buffered reader allocates `max_bytes`, and takes three times as many calls. A file that grows
    meanwhile ends at its size at the start.
    """
    if is_url(name):
        with open_file(name) as file:
            return file.read(max_bytes)
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The size is 0 if the system does not know it.
        size = os.fstat(descriptor).st_size
        parts = []
        num_read = 0
        while num_read < max_bytes:
            part = os.read(descriptor, min(max(size - num_read, MIN_READ_BYTES), max_bytes - num_read))
            parts.append(part)
            num_read += len(part)
            if not part or num_read == size:
                break
        return b"".join(parts)
    finally:
        os.close(descriptor)


def copy_file(name: str, path: Path, size: int | None = None) -> None:
    """Copy a file to a local path.

    Args:
        name: File path or URL.
        path: Path of the copy, which must not exist.
        size: Expected size in bytes. None: any size.

    Raises:
        OSError: The file has another size, or cannot be read or written. The copy may then be incomplete.
    """
    with open_file(name) as source, create_file(path) as copy:
        if size is not None:
            actual_size = source.seek(0, io.SEEK_END)
            if actual_size != size:
                raise PathError(f"{name}: {actual_size:,} bytes, not {size:,}")
        source.seek(0)
        shutil.copyfileobj(source, copy, COPY_BYTES)


def file_states(names: Sequence[str]) -> list[FileState]:
    """Return the states of files. Raises OSError."""
    if not any(map(is_url, names)):
        return [_state(name) for name in names]
    with ThreadPoolExecutor(NUM_REQUESTS) as threads:
        return list(threads.map(_state, names))


def _state(name: str) -> FileState:
    path: str | Path | None = name
    if is_url(name):
        path = local_path(name)
    if path is not None:
        status = os.stat(path)
        return FileState(status.st_size, f"{status.st_size}-{status.st_mtime_ns}")
    file = RemoteFile(name)
    return FileState(file.size, f"{file.size}-{file.version}")
