"""Key-value store in which the ranks of a run meet.

torch's store has no passwords: any process that reaches its port can read and write every key. So if all ranks are on one host,
the store only listens on the loopback interface.
"""

import os
import socket
from contextlib import closing
from datetime import timedelta

import torch.distributed as dist

from megatape.distributed.launch.launchers import is_on_one_host
from megatape.distributed.topology import Topology

LOOPBACK = "127.0.0.1"
# Maximum number of pending connections, as in torch.
BACKLOG = 2048


def open_store(topology: Topology, timeout: timedelta, wait_for_ranks: bool = True) -> dist.Store:
    """Open the run's store at MASTER_ADDR and MASTER_PORT. Rank 0 serves it, unless torchrun does.

    If all ranks are on one host, the store only listens on the loopback interface, even if MASTER_ADDR is another address. A
    single rank has its store in memory, without a port.

    Args:
        topology: Ranks of this process.
        timeout: Timeout for connecting and for later calls.
        wait_for_ranks: Whether to wait until all ranks have connected.

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
    """Return the descriptor of a socket listening on the loopback interface. The store takes ownership."""
    with closing(socket.socket()) as listener:
        # Connections of an earlier run may still be closing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
            listener.listen(BACKLOG)
        except OSError as error:
            raise dist.DistNetworkError(f"{LOOPBACK} port {port}: {error}") from error
        return listener.detach()
