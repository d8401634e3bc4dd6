"""Adds the path to errors about a full disk, which name no file."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Errors reported for a full disk.
FULL = {errno.ENOSPC, errno.EDQUOT}


def name_path(error: BaseException, path: Path) -> None:
    """Add the path being written to an error about a full disk."""
    if isinstance(error, OSError) and error.errno in FULL and error.strerror and error.filename is None:
        error.filename = str(path)


@contextmanager
def named_if_full(path: Path) -> Iterator[None]:
    """Add the path to errors about a full disk inside the block."""
    try:
        yield
    except OSError as error:
        name_path(error, path)
        raise
