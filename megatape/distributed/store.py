"""Key-value store of the ranks' rendezvous, and the ranks' messages in it.

torch's store has no passwords: any process that reaches its port can read and write every key. So the store only listens on the
loopback interface if all ranks are on one host, and the ranks sign their messages.
"""

import hmac
import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from megatape.distributed.launchers import is_on_one_host
from megatape.distributed.topology import Topology

LOOPBACK = "127.0.0.1"
# Maximum number of pending connections, the same as torch's.
BACKLOG = 2048


def open_store(topology: Topology, timeout: timedelta, wait_for_ranks: bool = True) -> dist.Store:
    """Open the store of this run at MASTER_ADDR and MASTER_PORT. Rank 0 serves it, unless torchrun does.

    If all ranks are on one host, the store only listens on the loopback interface, even if MASTER_ADDR is another address. The
    store of a single rank is in its memory and has no port.

    Args:
        topology: All ranks.
        timeout: Timeout of the connection and of later calls.
        wait_for_ranks: Whether to wait until all ranks have connected.

    Returns:
        The store.

    Raises:
        DistNetworkError: The port is taken, or rank 0 does not answer.
        DistStoreError: Ranks are missing.
    """
    if topology.world_size == 1:
        store = dist.HashStore()
        store.set_timeout(timeout)
        return store
    address = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    is_served_by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = topology.is_main and not is_served_by_launcher
    listener = None
    if is_on_one_host(topology) and not is_served_by_launcher:
        address = LOOPBACK
        if serves:
            listener = _listen(port)
    return dist.TCPStore(
        address,
        port,
        topology.world_size,
        is_master=serves,
        timeout=timeout,
        wait_for_workers=wait_for_ranks,
        master_listen_fd=listener,
    )


def _listen(port: int) -> int:
    """Return the descriptor of a socket that listens on the loopback interface. The store will own it."""
    with closing(socket.socket()) as listener:
        # Connections of an earlier run may still be closing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
            listener.listen(BACKLOG)
        except OSError as error:
            raise dist.DistNetworkError(f"{LOOPBACK} port {port}: {error}") from error
        return listener.detach()


class StoreEnded(RuntimeError):
    """The store of the ranks has ended, or cannot be reached."""


class Messages:
    """Messages between ranks in a store: JSON lists, signed once the ranks share a secret.

    All calls that use the store raise StoreEnded once it has ended.

    Args:
        store: Store of the ranks.
        prefix: Prefix of the messages' keys.
    """

    def __init__(self, store: dist.Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._secret: bytes | None = None

    def authenticate(self, secret: bytes) -> None:
        """Sign messages from now on, and ignore messages of other processes, whose signature is missing or wrong.

        Args:
            secret: Secret that only the ranks of the run know.
        """
        self._secret = secret

    def put(self, name: str, *values: object) -> None:
        """Write a message, replacing an earlier one of this name.

        Args:
            name: Name of the message.
            values: JSON values.
        """
        text = self._seal(name, values)
        with _telling_of_end():
            self._store.set(self._prefix + name, text)

    def put_first(self, name: str, *values: object) -> bool:
        """Write a message, unless a rank has already written one of this name.

        Args:
            name: Name of the message.
            values: JSON values.

        Returns:
            Whether the message in the store is this one.
        """
        key = self._prefix + name
        text = self._seal(name, values)
        with _telling_of_end():
            found = self._store.compare_set(key, "", text)
            if found != text.encode() and self._open(name, found) is None:
                # A process that is not a rank wrote the value, so replace it.
                found = self._store.compare_set(key, found, text)  # type: ignore[arg-type]  # takes bytes, too
        return bool(found == text.encode())

    def get(self, name: str) -> list[Any] | None:
        """Return the values of a message, or None if no rank has written one.

        Args:
            name: Name of the message.
        """
        key = self._prefix + name
        with _telling_of_end():
            if not self._store.check([key]):
                return None
            text = self._store.get(key)
        return self._open(name, text)

    def _seal(self, name: str, values: object) -> str:
        content = json.dumps(values)
        return self._signature(name, content) + content

    def _open(self, name: str, text: bytes) -> list[Any] | None:
        """Return the values of a text, or None if no rank of this run has written it."""
        try:
            signature, bracket, rest = text.decode().partition("[")
            content = bracket + rest
            if self._secret is not None and not hmac.compare_digest(signature, self._signature(name, content)):
                return None
            values = json.loads(content)
        except (ValueError, TypeError, RecursionError):
            # A TypeError means that the signature is not ASCII.
            return None
        if not isinstance(values, list):
            return None
        return values

    def _signature(self, name: str, content: str) -> str:
        """Return the signature of a message, or "" before the ranks share a secret."""
        if self._secret is None:
            return ""
        return hmac.new(self._secret, f"{name} {content}".encode(), "sha256").hexdigest()


@contextmanager
def _telling_of_end() -> Iterator[None]:
    """Raise StoreEnded for the RuntimeError of a call to the store."""
    try:
        yield
    except RuntimeError as error:
        raise StoreEnded(str(error)) from error
