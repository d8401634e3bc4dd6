"""Rendezvous of all ranks at a key-value store, which works even if collectives fail."""

import json
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from megatape.distributed.launch.network import check_rendezvous
from megatape.distributed.launch.store import open_store
from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.tools.cluster.preflight.timeouts import Timeouts
from megatape.utils.processes.waiting import wait_until


class Rendezvous:
    """A key-value store that all ranks have joined.

    Args:
        topology: All ranks.
        timeouts: Timeouts of the checks.

    Attributes:
        store: Key-value store, served by rank 0.

    Raises:
        UserError: The address of rank 0 is invalid or does not answer, or ranks are missing. The message names them.
    """

    def __init__(self, topology: Topology, timeouts: Timeouts) -> None:
        check_rendezvous(timeouts.name)
        self._topology = topology
        self._timeouts = timeouts
        self._host = socket.gethostname()
        self.store = self._connect()
        self._wait_for_ranks()

    def collect(self, name: str, value: Any) -> list[Any]:
        """Gather a JSON value from every rank.

        Args:
            name: Name of the value, equal on all ranks.
            value: Value of this rank, not None.

        Returns:
            Value of each rank, None for ranks that do not answer.
        """
        self.store.set(f"{name}{self._topology.rank}", json.dumps(value))
        values = []
        for rank in range(self._topology.world_size):
            try:
                self.store.wait([f"{name}{rank}"], timedelta(seconds=self._timeouts.answer))
                values.append(json.loads(self.store.get(f"{name}{rank}")))
            except (dist.DistStoreError, dist.DistNetworkError):
                values.append(None)
        return values

    def leave(self) -> None:
        """Wait until all ranks leave or stop answering. Rank 0 serves the store, so it must be the last to end."""
        self.collect("end", True)

    def _connect(self) -> dist.Store:
        try:
            return open_store(self._topology, timedelta(seconds=self._timeouts.arrival), wait_for_ranks=False)
        except (dist.DistNetworkError, dist.DistStoreError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"rank {self._topology.rank} on {self._host}: rank 0 did not answer at {os.environ['MASTER_ADDR']} port "
                f"{os.environ['MASTER_PORT']} within {self._timeouts.arrival:.0f} s: check that its host is up, that "
                f"MASTER_ADDR is its address, and that the firewall lets the port through ({reason})"
            ) from None

    def _wait_for_ranks(self) -> None:
        """Announce this rank, and wait for all others."""
        self.store.set(f"host{self._topology.rank}", self._host)
        keys = [f"host{rank}" for rank in range(self._topology.world_size)]
        if wait_until(lambda: self.store.check(keys), self._timeouts.arrival, interval=0.1):
            return
        hosts = set()
        absent = []
        for rank, key in enumerate(keys):
            if self.store.check([key]):
                hosts.add(self.store.get(key).decode())
            else:
                absent.append(str(rank))
        raise UserError(
            f"rank {self._topology.rank} on {self._host}: {len(absent)} of {self._topology.world_size} ranks did not arrive "
            f"within {self._timeouts.arrival:.0f} s: {', '.join(absent)}; ranks arrived from {', '.join(sorted(hosts))}. "
            "Check the launcher's messages about the other hosts: are they up and reachable, and does Python start there?"
        )
