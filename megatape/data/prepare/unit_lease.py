"""Work leases, so that processes do not repeat each other's work, on any file system that they share.

A lease is a file that names its process and whose time of change is the process's heartbeat. It is created exclusively, which
NFS does atomically, but replaced without further care. Leases save work and guarantee nothing: two processes may have the same.
reliability/lease.py is for what only one process may do.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from megatape.reliability.heartbeat_monitor import HeartbeatMonitor
from megatape.reliability.holder import read_holder, this_process
from megatape.reliability.lease import LeaseTimeouts

DEFAULT_TIMEOUTS = LeaseTimeouts(expiry=120.0, poll_interval=0.25)  # `settle` is for leases that exclude others


class UnitLease:
    """A lease in the file `path`. monitor: of the heartbeats that this process has seen there."""

    def __init__(self, path: Path, timeouts: LeaseTimeouts, monitor: HeartbeatMonitor) -> None:
        self.path = path
        self.timeouts = timeouts
        self.monitor = monitor
        self._content = this_process().content()
        self._renewed = 0.0

    def acquire(self) -> bool:
        """Whether this process has the lease now: it was free, or its holder has died or timed out.

        A running process of this machine keeps its lease without heartbeats: it may be busy.
        """
        if self._create():
            return True
        try:
            content = self.path.read_bytes()
            beat = self.path.stat().st_mtime
        except FileNotFoundError:  # released just now
            return self._create()
        self.monitor.look(content, beat)
        holder = read_holder(content)
        dead = None if holder is None else holder.is_dead()
        runs = holder is not None and dead is False and not holder.is_stopped()
        # An empty file has no holder that gives heartbeats: it is being created, or its process died meanwhile.
        expiry = self.timeouts.expiry if content else self.timeouts.heartbeat_interval
        if runs or (not dead and self.monitor.silent < expiry):
            return False
        self.path.unlink(missing_ok=True)
        return self._create()

    def beat(self) -> None:
        """Send a heartbeat if it is due."""
        now = time.monotonic()
        if now - self._renewed > self.timeouts.heartbeat_interval:
            self._renewed = now
            with suppress(OSError):  # taken over, or the file system is away: the work does not depend on it
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
