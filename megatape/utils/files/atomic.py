"""Outputs that are either complete or absent: new folders, replaced files, renaming."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from megatape.errors import ExistingPath
from megatape.utils.files.files import DEFAULT_MODE, create_file
from megatape.utils.files.full_disk import name_path, named_if_full
from megatape.utils.files.paths import temporary_name
from megatape.utils.files.retries import retry_transient_errors


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Create a folder for the block to fill. It gets the name `output` after the block, or is removed if the block fails.

    Raises:
        FileExistsError: `output` exists before or after the block.
    """
    check_absent(output)
    folder = temporary_name(output)
    folder.mkdir(parents=True)
    try:
        yield folder
        check_absent(output)
        rename(folder, output)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        name_path(error, output)
        raise


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder, replacing an existing file.

    A network file system may report an error for a successful rename: the answer was lost, and the repeated request finds
    nothing to rename. So the error is ignored if `target` is the renamed file.

    Args:
        source: File or folder.
        target: New name.

    Raises:
        OSError: The rename failed.
    """
    before = source.stat(follow_symlinks=False)
    try:
        source.rename(target)
    except OSError as error:
        try:
            after = retry_transient_errors(lambda: target.stat(follow_symlinks=False))
        except OSError:
            raise error from None
        if not os.path.samestat(before, after):
            raise


def check_absent(output: Path) -> None:
    """Raise FileExistsError if anything has this name."""
    if output.exists() or output.is_symlink():
        raise ExistingPath(f"{output} exists: remove it or choose another name")


def write_atomically(path: Path, content: bytes) -> None:
    """Create or replace a file, so that a killed process leaves either the old or the new content.

    The file keeps its mode and, if this user may change owners, its owner. So a private file stays private.

    Args:
        path: File to write.
        content: New content.

    Raises:
        OSError: The file cannot be written. Its content is unchanged.
    """
    partial = temporary_name(path)
    before = None
    # A link gets the mode of the file that it points to.
    with suppress(OSError):
        before = path.stat()
    mode = DEFAULT_MODE
    if before is not None and stat.S_ISREG(before.st_mode):
        mode = stat.S_IMODE(before.st_mode)
    try:
        with named_if_full(path), create_file(partial, mode) as file:
            if before is not None and stat.S_ISREG(before.st_mode):
                with suppress(PermissionError):
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        rename(partial, path)
    finally:
        partial.unlink(missing_ok=True)
