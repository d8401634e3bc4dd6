"""Reading and writing a lease's file. It names the holder, and its time of change is the last heartbeat."""

import os
from dataclasses import dataclass
from pathlib import Path

from megatape.reliability.lease.holder import Holder, read_holder
from megatape.utils.files.files import open_regular


@dataclass(frozen=True)
class LeaseContent:
    """Content and heartbeat of the file.

    Attributes:
        content: Names the holder. Empty while the holder is creating the file.
        heartbeat: Time of the last heartbeat, by the file system's clock.
    """

    content: bytes
    heartbeat: float

    def holder(self) -> Holder | None:
        """Return the holder, or None if the content is unfinished or corrupted."""
        return read_holder(self.content)


def read_lease(path: Path) -> LeaseContent:
    """Read the file. Opening it makes an NFS client ask the server.

    Raises:
        OSError: The file is missing or cannot be read.
        UserError: It is a pipe or a device.
    """
    with open_regular(path) as file:
        return LeaseContent(file.read(), os.fstat(file.fileno()).st_mtime)


def create_lease(path: Path, content: bytes) -> bool:
    """Create the file. Returns False if it exists already.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        write_lease(path, content, mode="xb")
    except FileExistsError:
        return False
    return True


def write_lease(path: Path, content: bytes, mode: str = "wb") -> None:
    """Write a file, and wait until it is on disk."""
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def renew_lease(path: Path, content: bytes) -> bytes:
    """Send a heartbeat if the file still has this content.

    Returns:
        The file's content.

    Raises:
        OSError: The file is missing or cannot be changed.
    """
    with open_regular(path) as file:
        present_content = file.read()
        if present_content == content:
            os.utime(file.fileno())
        return present_content
