"""Opens, creates, links and syncs files with untrusted names and contents.

Outputs never replace existing files and never follow links.
"""

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from megatape.errors import ExistingPath, PathError, UserError
from megatape.utils.files.full_disk import named_if_full
from megatape.utils.files.paths import temporary_name

# Permissions of a new file, before the umask is applied.
DEFAULT_MODE = 0o666
NO_OUTPUT = "a link, a pipe or a device, through which nothing is written: remove it, or replace it by the file"


@contextmanager
def open_regular(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading.

    Raises:
        OSError: The file cannot be opened.
        UserError: The path is a pipe or device, which may never end.
    """

    def open_at_once(name: str, flags: int) -> int:
        # Without O_NONBLOCK, opening a pipe would wait for its other end.
        return os.open(name, flags | os.O_NONBLOCK)

    with open(path, "rb", opener=open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UserError(f"{path}: a pipe or a device, not a file: replace it by the original file")
        yield file


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raises the same errors as `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def create_file(path: Path, mode: int = DEFAULT_MODE) -> IO[bytes]:
    """Create a file, and return it open for writing.

    File names in an output folder may be untrusted, for example from a downloaded index. So existing files are never replaced,
    and links are not followed.

    Args:
        path: File to create. It must not exist.
        mode: Permissions before applying the umask.

    Raises:
        ExistingPath: A file, folder or link has this name.
        OSError: The file cannot be created.
    """
    try:
        return open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))
    except FileExistsError:
        raise _existing_output(path) from None


def _existing_output(path: Path) -> ExistingPath:
    return ExistingPath(f"{path} exists already, and outputs replace no file and follow no link: remove it, or rename it")


@contextmanager
def open_in_place(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading and appending, and create it if it is missing.

    Raises:
        PathError: `path` is a link, a pipe or a device.
        OSError: The file cannot be opened.
    """
    try:
        descriptor = without_links(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise PathError(f"{path}: {NO_OUTPUT}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PathError(f"{path}: {NO_OUTPUT}")
    with open(descriptor, "ab+") as file:
        yield file


def without_links(name: str | Path, flags: int) -> int:
    """Open a file unless it is a symbolic link. An `opener` for `open`.

    Args:
        name: Path of the file.
        flags: Flags for `os.open`.

    Returns:
        File descriptor.

    Raises:
        OSError: The file is a link (ELOOP) or cannot be opened.
    """
    # Without O_NONBLOCK, opening a pipe would wait for its other end.
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, DEFAULT_MODE)


def create_private(path: Path, content: bytes) -> None:
    """Create a file that only this user can read.

    Args:
        path: File to create.
        content: Content to write.

    Raises:
        ExistingPath: The name is taken, for example by a link that another user has planted.
        OSError: The file cannot be written.
    """
    with create_file(path, 0o600) as file:
        file.write(content)


def file_system_time(folder: Path) -> float:
    """Return the time by the clock of `folder`'s file system, in seconds since the epoch."""
    probe = temporary_name(folder / "clock")
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's content or a folder's entries are on disk."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_file(source: str | Path, target: str | Path) -> None:
    """Hard-link a file, or copy it if the file system has no links between the two folders.

    If `source` is a symbolic link, this links or copies the file it points to. A relative link, as in the hub's cache, would
    break in another folder.

    Args:
        source: File, or link to a file.
        target: New name.

    Raises:
        UserError: `source` is a folder, a pipe or a device, or a link to one.
        ExistingPath: A file, folder or link has the name `target`.
        OSError: `source` is missing, or `target` cannot be written.
    """
    target = Path(target)
    original = check_regular(Path(source))
    try:
        os.link(original, target)
    except FileExistsError:
        raise _existing_output(target) from None
    except OSError:
        _copy(original, target)


def check_regular(path: Path) -> Path:
    """Check that a path is a file or a link to one, and return it with links resolved.

    Raises:
        UserError: The path is a folder, a pipe or a device, or a link to one.
        OSError: The path is missing or a broken link.
    """
    original = Path(os.path.realpath(path, strict=True))
    mode = original.lstat().st_mode
    if stat.S_ISREG(mode):
        return original
    kind = "a pipe or a device"
    if stat.S_ISDIR(mode):
        kind = "a folder"
    if path.is_symlink():
        kind = f"a link to {kind}"
    raise UserError(f"{path}: {kind}, not a file: replace it by the original file")


def _copy(source: Path, target: Path) -> None:
    with named_if_full(target), open_regular(source) as content, create_file(target) as copy:
        shutil.copyfileobj(content, copy)
        copy.flush()
        os.fsync(copy.fileno())
