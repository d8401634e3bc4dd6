"""Leases of units, so that processes do not repeat each other's work, on any shared file system.

A lease is a file that names its process and whose modification time is the process's heartbeat. It is created exclusively,
which NFS does atomically, but it is not taken over atomically. Leases save work and guarantee nothing: two processes may hold
the same one. Use reliability/lease/lease.py for work that only one process may do.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from megatape.reliability.lease import LeaseTimeouts
from megatape.reliability.lease.heartbeat_monitor import HeartbeatMonitor
from megatape.reliability.lease.holder import read_holder, this_process

# `settle` is for leases that exclude others.
DEFAULT_TIMEOUTS = LeaseTimeouts(expiry=120.0, poll_interval=0.25)


class UnitLease:
    """Lease in a file.

    Args:
        path: Path of the file.
        timeouts: Timeouts of the lease.
        monitor: Monitor of the heartbeats that this process has seen in the file.
    """

    def __init__(self, path: Path, timeouts: LeaseTimeouts, monitor: HeartbeatMonitor) -> None:
        self.path = path
        self.timeouts = timeouts
        self.monitor = monitor
        self._content = this_process().content()
        self._renewed = 0.0

    def acquire(self) -> bool:
        """Try to take the lease. Returns False if a living process holds it.

        A lease whose holder has died or timed out is taken over. A running process of this machine keeps its lease without
        heartbeats: it may be busy.
        """
        if self._create():
            return True
        try:
            content = self.path.read_bytes()
            last_heartbeat = self.path.stat().st_mtime
        except FileNotFoundError:
            # It was released just now.
            return self._create()
        self.monitor.look(content, last_heartbeat)
        if self._is_held(content):
            return False
        self.path.unlink(missing_ok=True)
        return self._create()

    def _is_held(self, content: bytes) -> bool:
        """Whether the process named in the file seems to be alive."""
        holder = read_holder(content)
        is_dead = None
        if holder is not None:
            is_dead = holder.is_dead()
            if is_dead is False and not holder.is_stopped():
                return True
        if is_dead:
            return False
        expiry = self.timeouts.expiry
        if not content:
            # An empty file has no holder with heartbeats: it is being created, or its process died meanwhile.
            expiry = self.timeouts.heartbeat_interval
        return self.monitor.silent < expiry

    def heartbeat(self) -> None:
        """Send a heartbeat if it is due."""
        now = time.monotonic()
        if now - self._renewed > self.timeouts.heartbeat_interval:
            self._renewed = now
            # Another process may have taken the lease, or the file system may be unavailable: the work does not depend on it.
            with suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
        """Release the lease."""
        with suppress(OSError):
            if self.path.read_bytes() == self._content:
                self.path.unlink()

    def _create(self) -> bool:
        try:
            with self.path.open("xb") as file:
                file.write(self._content)
        except FileExistsError:
            return False
        return True
