"""Folder in /tmp that only this user can write, for caches of compiled code."""

import atexit
import logging
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

LOG = logging.getLogger(__name__)


def private_folder(is_first: bool = True) -> Path | None:
    """Return /tmp/megatape-UID, or a new folder for this process if another user may have written there.

    The folder is created if needed. Any user can create a folder, a link or a file of this name in /tmp, and code in it would
    run as this user. The new folder is removed when the process ends.

    Args:
        is_first: Whether this process warns of an untrusted folder. The other processes on its host find the same one.

    Returns:
        The folder, or None if there is no folder for temporary files.
    """
    name = f"megatape-{os.getuid()}"
    try:
        folder = Path(gettempdir(), name)
        fault = _fault(folder)
        if not fault:
            return folder
        own = Path(mkdtemp(prefix=f"{name}-"))
    except OSError as error:
        LOG.debug("there is no folder for temporary files: %s", error)
        return None
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    level = logging.DEBUG
    if is_first:
        level = logging.WARNING
    remedy = "remove it, or let its owner do so"
    LOG.log(level, "%s %s: kernels are compiled again at each start, in %s; %s", folder, fault, own, remedy)
    return own


def _fault(folder: Path) -> str:
    """Create the folder if needed, and return the reason why it is not trusted, or "" if it is."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # Not stat, because another user may have planted a link.
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if found.st_uid != os.getuid():
        return f"belongs to user {found.st_uid}"
    if found.st_mode & 0o077:
        return f"has mode {stat.S_IMODE(found.st_mode):o} instead of 700, so others may have written there"
    return ""
