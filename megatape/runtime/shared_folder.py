"""Folders shared between hosts, perhaps by a network file system that shows one host late what another one wrote."""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from megatape.errors import PathError, path_error
from megatape.runtime.exchange import exchange, on_main
from megatape.runtime.topology import Topology

PATIENCE = 75.0  # seconds; NFS clients cache for up to 60 that a file does not exist


def appears(path: Path, patience: float = PATIENCE) -> bool:
    """Whether `path`, which another host created, becomes visible here within `patience` seconds."""
    deadline = time.monotonic() + patience
    while not os.path.exists(path):  # False, too, while the file system reports errors: all ranks end this alike
        if time.monotonic() > deadline:
            return False
        for folder in reversed(path.parents[:3]):
            try:
                os.listdir(folder)  # opening a folder makes an NFS client ask the server whether it changed
            except OSError:
                continue
        time.sleep(0.2)
    return True


def check_shared(directory: Path, topology: Topology, patience: float = PATIENCE) -> None:
    """Create the run's folder. Raises PathError on all ranks if one of them cannot see what another wrote there."""
    token, needed = directory / ".shared", f"run.directory {directory} must be one folder that all ranks see and can write: "

    def create() -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            token.touch()
        except OSError as error:
            raise path_error(error, f"{needed}{error}") from error

    on_main(create, topology)  # no rank looks for the token before it exists
    blind = [host for host in exchange("" if appears(token, patience) else socket.gethostname(), topology) if host]
    if topology.is_main:
        with suppress(OSError):  # an empty file more, and no rank that ends alone
            token.unlink()
    if blind:
        raise PathError(f"{needed}a file of the main rank is not visible on {', '.join(sorted(set(blind)))}")
