"""Folder in /tmp that only this user can write to, for caches of code."""

import atexit
import logging
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

LOG = logging.getLogger(__name__)


def private_folder(consequence: str, is_first: bool = True) -> Path | None:
    """Return /tmp/megatape-UID, created if needed, or a new folder for this process if another user may have written there.

    Any user can create a folder, a link or a file of this name in /tmp, and code in it would run as this user. The new folder
    is removed when the process ends.

    Args:
        consequence: Consequence of a new folder for this process, for the warning.
        is_first: Whether this process warns about an untrusted folder, because it is the first one on its host.

    Returns:
        The folder, or None if there is no folder for temporary files.
    """
    name = f"megatape-{os.getuid()}"
    try:
        folder = Path(gettempdir(), name)
        reason = _reason_for_distrust(folder)
        if reason is None:
            return folder
        new_folder = Path(mkdtemp(prefix=f"{name}-"))
    except OSError as error:
        LOG.debug("there is no folder for temporary files: %s", error)
        return None
    atexit.register(shutil.rmtree, new_folder, ignore_errors=True)
    level = logging.DEBUG
    if is_first:
        level = logging.WARNING
    remedy = "remove it, or let its owner do so"
    LOG.log(level, "%s %s: %s, in %s; %s", folder, reason, consequence, new_folder, remedy)
    return new_folder


def _reason_for_distrust(folder: Path) -> str | None:
    """Create the folder if needed. Return why it is not trusted, or None if it is."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # stat would follow a link that another user may have planted.
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    if status.st_uid != os.getuid():
        return f"belongs to user {status.st_uid}"
    if status.st_mode & 0o077:
        return f"has mode {stat.S_IMODE(status.st_mode):o} instead of 700, so others may have written there"
    return None
