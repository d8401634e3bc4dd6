"""Checks that ranks share the run directory, over network file systems that may show new files late."""

import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
    secret = secrets.token_bytes(SECRET_BYTES)
    if topology.world_size == 1:
        return secret

    def create() -> Path:
        parent = next(folder for folder in (directory, *directory.parents) if folder.is_dir())
        path = _random_name(parent, "secret")
        create_private(path, secret)
        return path

    with _file_of_main(directory, create, topology) as path:

        def read() -> bytes:
            if not wait_until_visible(path, patience):
                raise PathError(_invisible(directory, [socket.gethostname()]))
            with path_errors():
                return path.read_bytes()

        # Unlike `on_all`, `on_each` sends no results, and so no secret.
        return on_each(read, topology)


def check_shared(directory: Path, topology: Topology, patience: float = VISIBILITY_TIMEOUT) -> None:
    """Create the run directory, and check that all ranks share it. Collective.

    Args:
        directory: Run directory.
        topology: All ranks.
        patience: Seconds to wait until the main rank's file is visible.

    Raises:
        PathError: The main rank cannot write there, or another rank does not see its file. Raised on all ranks.
    """

    def create() -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        # A fixed name could be that of an earlier start's file, which was killed.
        path = _random_name(directory, "shared")
        create_private(path, b"")
        return path

    with _file_of_main(directory, create, topology) as path:
        blind_host = None
        # Each rank looks in its own directory, which may have another path.
        if not wait_until_visible(directory / path.name, patience):
            blind_host = socket.gethostname()
        blind_hosts = {host for host in gather_values(blind_host, topology) if host is not None}
    if blind_hosts:
        raise PathError(_invisible(directory, sorted(blind_hosts)))


@contextmanager
def _file_of_main(directory: Path, create: Callable[[], Path], topology: Topology) -> Iterator[Path]:
    """Create a temporary file on the main rank, and yield its path on all ranks. Collective.

    The block has to end with a collective, so that no rank still looks for the file when the main rank removes it.

    Args:
        directory: Run directory, for errors.
        create: Creates the file, and returns its path.
        topology: All ranks.

    Raises:
        PathError: The main rank cannot create the file. Raised on all ranks.
    """

    def create_file() -> Path:
        try:
            return create()
        except OSError as error:
            raise path_error(error, f"{_requirement(directory)}{marked_message(error)}") from error

    # No rank looks for the file before it exists.
    path = on_main(create_file, topology)
    try:
        yield path
    finally:
        if topology.is_main:
            with suppress(OSError):
                path.unlink()


def _random_name(folder: Path, kind: str) -> Path:
    """Return a path in a folder that no other file has."""
    return folder / f".{kind}-{secrets.token_hex(8)}"


def _invisible(directory: Path, hosts: Sequence[str]) -> str:
    """Return the error about hosts that do not see the main rank's file."""
    return f"{_requirement(directory)}a file of the main rank is not visible on {', '.join(hosts)}"


def _requirement(directory: Path) -> str:
    """Return the beginning of an error about a run directory that ranks do not share."""
    return f"run.directory {directory} must be one folder that all ranks see and can write: "
