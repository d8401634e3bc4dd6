"""Taking a lease that is free, or whose holder is dead."""

import logging
import time
from pathlib import Path

from megatape.reliability.lease.heartbeat_monitor import HeartbeatMonitor
from megatape.reliability.lease.holder import Holder
from megatape.reliability.lease.in_use import UNKNOWN, in_use_error
from megatape.reliability.lease.lease_file import LeaseContent, create_lease, read_lease, write_lease
from megatape.reliability.lease.timeouts import LeaseTimeouts
from megatape.utils.files.atomic import rename
from megatape.utils.processes.waiting import wait_until

LOG = logging.getLogger(__name__)


class Takeover:
    """Attempts to become the holder of a lease, while monitoring its current holder.

    Args:
        path: The lease's file.
        holder: This process as a holder.
        timeouts: Lease timeouts.
    """

    def __init__(self, path: Path, holder: Holder, timeouts: LeaseTimeouts) -> None:
        self._path = path
        self._content = holder.content()
        self._candidate = path.with_name(f"{path.name}.{holder.nonce}.tmp")
        self._timeouts = timeouts
        self._monitor = HeartbeatMonitor(max_gap=timeouts.heartbeat_interval)

    def attempt(self) -> bool:
        """Try for about one heartbeat interval.

        Returns:
            Whether this process holds the lease now. If not, the holder may be dead: try again.

        Raises:
            UserError: A live run holds the lease.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        interval = self._timeouts.heartbeat_interval
        try:
            return wait_until(self._create_or_replace, interval, self._timeouts.poll_interval)
        finally:
            self._candidate.unlink(missing_ok=True)

    def _create_or_replace(self) -> bool:
        return create_lease(self._path, self._content) or self._replace()

    def _replace(self) -> bool:
        """Replace a dead holder's file.

        Returns:
            Whether this process holds the lease now. False while the holder is not known to be dead.

        Raises:
            UserError: The holder is alive.
        """
        try:
            lease = read_lease(self._path)
            holder = lease.holder()
            reason = self._reason_of_death(holder, lease)
            if reason is None:
                return False
            write_lease(self._candidate, self._content)
            if read_lease(self._path) != lease:
                return False
            rename(self._candidate, self._path)
            time.sleep(self._timeouts.settle)
            if read_lease(self._path).content != self._content:
                # A third run was faster.
                return False
        except FileNotFoundError:
            # The holder has released it meanwhile.
            return False
        LOG.warning(f"{self._path}: {holder or UNKNOWN}, {reason}: this run takes over")
        return True

    def _reason_of_death(self, holder: Holder | None, lease: LeaseContent) -> str | None:
        """Return how we know that the holder is dead, None while that is unknown.

        Raises:
            UserError: The holder is alive.
        """
        is_dead = None
        if holder is not None:
            is_dead = holder.is_dead()
        if is_dead:
            return "has ended"
        if is_dead is False or self._monitor.check(lease.content, lease.heartbeat):
            raise in_use_error(self._path, holder)
        expiry = self._timeouts.expiry
        if not lease.content:
            # Whoever creates an empty file sends no heartbeats yet, or has died meanwhile.
            expiry = self._timeouts.heartbeat_interval
        if self._monitor.num_checks == 1:
            LOG.warning(f"{self._path} is held by {holder or UNKNOWN}: waiting {expiry:.0f} s for its heartbeat")
        if self._monitor.silent < expiry:
            return None
        return f"has given no heartbeat for {expiry:.0f} s"
