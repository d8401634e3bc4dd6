"""File locks between processes."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from megatape.utils.files.files import open_in_place


@contextmanager
def locked(path: Path, wait: bool = True, remove: bool = False) -> Iterator[IO[bytes]]:
    """Hold a lock for this process and the children inheriting the file.

    The package filelock would not do: when released, it ends the lock of such children, too.

    Args:
        path: Lock file, created with its folder if needed.
        wait: Whether to wait while another process holds the lock.
        remove: Whether to remove the file at the end. All users of a lock must pass the same value.

    Raises:
        BlockingIOError: Another process holds the lock, and `wait` is False.
        PathError: `path` is a link, a pipe or a device.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    operation = fcntl.LOCK_EX
    if not wait:
        operation |= fcntl.LOCK_NB
    while True:
        with open_in_place(path) as file:
            fcntl.flock(file, operation)
            if remove and not _has_name(file, path):
                # The previous holder has removed the file, and another process may have created a new one.
                continue
            try:
                yield file
            finally:
                if remove:
                    path.unlink(missing_ok=True)
            return


def _has_name(file: IO[bytes], path: Path) -> bool:
    """Whether `path` is still the name of an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
