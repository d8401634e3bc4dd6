"""Unit leases keep processes from repeating each other's work, on any shared file system.

A lease is a file naming its process. The file's modification time is the process's heartbeat. Creating it exclusively is
atomic, even on NFS, but taking it over is not: two processes may hold the same lease. That wastes work and does no harm. Use
reliability/lease/lease.py for work that only one process may do.
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
    """Lease in a file. `monitor` remembers the heartbeats that this process has seen in the file."""

    def __init__(self, path: Path, timeouts: LeaseTimeouts, monitor: HeartbeatMonitor) -> None:
        self.path = path
        self.timeouts = timeouts
        self.monitor = monitor
        self._content = this_process().content()
        self._renewed = 0.0

    def acquire(self) -> bool:
        """Try to take the lease. Returns False if a living process holds it.

        A lease is taken over if its holder has died or timed out. A running process on this machine keeps its lease without
        heartbeats, because it may be busy.
        """
        if self._create():
            return True
        try:
            content = self.path.read_bytes()
            last_heartbeat = self.path.stat().st_mtime
        except FileNotFoundError:
            # The lease was released just now.
            return self._create()
        self.monitor.check(content, last_heartbeat)
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
            # The file is empty while it is being created. Nobody renews it if its process died then.
            expiry = self.timeouts.heartbeat_interval
        return self.monitor.silent < expiry

    def heartbeat(self) -> None:
        """Renew the lease if it is due."""
        now = time.monotonic()
        if now - self._renewed > self.timeouts.heartbeat_interval:
            self._renewed = now
            # Another process may have taken over, or the file system may be unavailable. The work does not depend on the lease.
            with suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
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
