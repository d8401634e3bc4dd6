"""Checks that ranks share the run directory, over network file systems that may show new files late."""

import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

from megatape.distributed.topology import Topology
from megatape.distributed.values.exchange import gather_values, on_each, on_main
from megatape.errors import PathError, marked_message, path_error, path_errors
from megatape.utils.files.files import create_private
from megatape.utils.processes.waiting import wait_until

SECRET_BYTES = 32
# Seconds to wait for a file written on another host. NFS clients cache for up to 60 s that a file does not exist.
VISIBILITY_TIMEOUT = 75.0


def wait_until_visible(path: Path, timeout: float = VISIBILITY_TIMEOUT) -> bool:
    """Wait until a file or folder created on another host is visible.

    Args:
        path: The file or folder.
        timeout: Maximum seconds to wait.

    Returns:
        Whether it is visible.
    """

    def is_visible() -> bool:
        for folder in reversed(path.parents[:3]):
            # Opening a folder makes an NFS client ask the server whether the folder has changed.
            with suppress(OSError):
                os.listdir(folder)
        # exists() is False while the file system reports errors, so all ranks end the same way.
        return os.path.exists(path)

    return wait_until(is_visible, timeout, interval=0.2)


def share_secret(directory: Path, topology: Topology, patience: float = VISIBILITY_TIMEOUT) -> bytes:
    """Share a secret with all ranks, through a temporary file that only this user can read. Collective.

    Args:
        directory: Run directory. Before it exists, the file is in its nearest existing parent.
        topology: All ranks.
        patience: Seconds to wait until the file is visible.

    Returns:
        SECRET_BYTES random bytes.

    Raises:
        PathError: The main rank cannot write the file, or another rank does not see it. Raised on all ranks.
    """
    requirement = _requirement(directory)
    if topology.world_size == 1:
        return secrets.token_bytes(SECRET_BYTES)

    def write() -> Path:
        try:
            parent = next(folder for folder in (directory, *directory.parents) if folder.is_dir())
            path = parent / f".secret-{secrets.token_hex(8)}"
            create_private(path, secrets.token_bytes(SECRET_BYTES))
        except OSError as error:
            raise path_error(error, f"{requirement}{marked_message(error)}") from error
        return path

    path = on_main(write, topology)

    def read() -> bytes:
        if not wait_until_visible(path, patience):
            raise PathError(f"{requirement}a file of the main rank is not visible on {socket.gethostname()}")
        with path_errors():
            return path.read_bytes()

    try:
        # Unlike `on_all`, `on_each` sends no results, and so no secret.
        return on_each(read, topology)
    finally:
        if topology.is_main:
            with suppress(OSError):
                path.unlink()


def check_shared(directory: Path, topology: Topology, patience: float = VISIBILITY_TIMEOUT) -> None:
    """Create the run directory, and check that all ranks share it. Collective.

    Args:
        directory: Run directory.
        topology: All ranks.
        patience: Seconds to wait until the main rank's file is visible.

    Raises:
        PathError: The main rank cannot write there, or another rank does not see its file. Raised on all ranks.
    """
    token = directory / ".shared"
    requirement = _requirement(directory)

    def create() -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            token.touch()
        except OSError as error:
            raise path_error(error, f"{requirement}{marked_message(error)}") from error

    # No rank looks for the token before it exists.
    on_main(create, topology)
    blind_host = None
    if not wait_until_visible(token, patience):
        blind_host = socket.gethostname()
    blind_hosts = {host for host in gather_values(blind_host, topology) if host is not None}
    if topology.is_main:
        token.unlink()
    if blind_hosts:
        hosts = ", ".join(sorted(blind_hosts))
        raise PathError(f"{requirement}a file of the main rank is not visible on {hosts}")


def _requirement(directory: Path) -> str:
    """Return the beginning of an error about a run directory that ranks do not share."""
    return f"run.directory {directory} must be one folder that all ranks see and can write: "
