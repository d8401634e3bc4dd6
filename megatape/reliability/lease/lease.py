"""Lease of a run's folder, so that one run at a time uses it, on any file system that hosts share.

The main rank of a run holds a lease: a file that names it, and whose time of change is its heartbeat. Files are created and
renamed atomically, and a run judges by its own monotonic clock whether another one's heartbeat changes. So neither file locks
nor correct clocks are needed.

A second run is refused while the holder lives, and takes over when it is dead. On the same machine the process table shows that
at once. On another one, the holder is dead after LeaseTimeouts.expiry without a heartbeat.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from megatape.distributed.topology import Topology
from megatape.errors import LeaseLost, UserError
from megatape.reliability.lease.heartbeat_monitor import HeartbeatMonitor
from megatape.reliability.lease.holder import Holder, read_holder, this_process
from megatape.reliability.lease.lease_file import LeaseContent, create_lease, read_lease, renew_lease, write_lease
from megatape.reliability.lease.timeouts import DEFAULT_TIMEOUTS, LeaseTimeouts
from megatape.utils.atomic import rename
from megatape.utils.files import file_system_time, read_regular
from megatape.utils.units import format_time
from megatape.utils.waiting import wait_until

LOG = logging.getLogger(__name__)

UNKNOWN = "an unknown process"
# Monotonic clock that, on Linux, also counts the time in which the machine is suspended.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Lease:
    """Lease of a folder. Only the main rank takes it: on other ranks, `check` and `release` do nothing.

    Args:
        path: File of the lease.
        timeouts: Times of the lease, the same for all runs that may use the folder.
    """

    def __init__(self, path: Path, timeouts: LeaseTimeouts = DEFAULT_TIMEOUTS) -> None:
        self.path = path
        self.timeouts = timeouts
        holder = this_process()
        self.nonce = holder.nonce
        self._content = holder.content()
        self._candidate = path.with_name(f"{path.name}.{self.nonce}.tmp")
        # Watches another run's lease.
        self._monitor = HeartbeatMonitor(max_gap=timeouts.heartbeat_interval)
        self._renewed = 0.0
        self._reason_of_loss: str | None = None
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def attempt(self) -> bool:
        """Try to take the lease for about one heartbeat interval.

        Returns:
            Whether it is held now. If not, its holder may be dead: try again.

        Raises:
            UserError: A live run holds it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        interval = self.timeouts.heartbeat_interval
        poll_interval = self.timeouts.poll_interval
        try:
            if not wait_until(lambda: self._create() or self._take_over(), interval, poll_interval):
                return False
        finally:
            self._candidate.unlink(missing_ok=True)
        self._renewed = time.clock_gettime(CLOCK)
        self._thread = threading.Thread(target=self._send_heartbeats, name="lease", daemon=True)
        self._thread.start()
        return True

    @property
    def is_late(self) -> bool:
        """Whether heartbeats fail at present, such as while the file server is away."""
        return self._thread is not None and self._silent > 2 * self.timeouts.heartbeat_interval

    @property
    def _silent(self) -> float:
        """Seconds since this run's last heartbeat."""
        return time.clock_gettime(CLOCK) - self._renewed

    def check(self) -> None:
        """Call before writing into the folder. Reads the file only when heartbeats are late.

        Raises:
            LeaseLost: Another run has taken the lease.
            OSError: The file cannot be read, and another run may take the lease before a write that
                begins now has ended.
        """
        if self.is_late:
            try:
                self._renew()
            except OSError:
                if self._silent > self.timeouts.expiry - 2 * self.timeouts.heartbeat_interval:
                    raise
        if self._reason_of_loss is not None:
            raise LeaseLost(self._reason_of_loss)

    def wait(self, requested: Callable[[], bool], warn: Callable[[str], object]) -> None:
        """Call `check` until it raises no OSError.

        Args:
            requested: Returns whether the run is asked to stop, which ends the wait.
            warn: Prints a line.

        Raises:
            LeaseLost: Another run has taken the lease.
        """
        warned = False
        while True:
            try:
                return self.check()
            except OSError as error:
                if requested():
                    return
                if not warned:
                    warn(
                        f"run.directory {self.path.parent} has not answered for {self._silent:.0f} s ({error}), so another run "
                        "may have taken it over: training waits until it answers"
                    )
                warned = True
                time.sleep(self.timeouts.poll_interval)

    def release(self) -> None:
        """Remove the lease if it is held."""
        if self._thread is None:
            return
        self._over.set()
        self._thread.join()
        self._thread = None
        with suppress(OSError, UserError):
            if read_regular(self.path) == self._content:
                self.path.unlink()

    def check_free(self) -> None:
        """Check that no run holds the lease, by one look at the file.

        Raises:
            UserError: A run holds the lease, or a process of another machine that may live: its
                last heartbeat is not old by the file system's clock.
        """
        try:
            found = read_lease(self.path)
        except FileNotFoundError:
            return
        holder = found.holder()
        dead = None
        if holder is not None:
            dead = holder.is_dead()
        if dead:
            return
        if dead is False:
            raise UserError(self._refusal(holder))
        expiry = self.timeouts.expiry
        now = file_system_time(self.path.parent)
        if now - found.heartbeat < expiry:
            heartbeat = format_time(found.heartbeat)
            raise UserError(
                f"cannot tell whether a run uses run.directory {self.path.parent}: {self.path} is held by "
                f"{holder or UNKNOWN}, last heartbeat at {heartbeat}, now it is {format_time(now)} on that file "
                f"system. Try again {expiry:.0f} s after its end, choose another folder, or remove the file if no run trains "
                "there"
            )

    def _create(self) -> bool:
        """Create the file unless it exists."""
        return create_lease(self.path, self._content)

    def _take_over(self) -> bool:
        """Replace the file of a dead holder.

        Returns:
            Whether this run has the lease now: not if the holder is not known to be dead.

        Raises:
            UserError: The holder is alive.
        """
        try:
            found = read_lease(self.path)
            holder = found.holder()
            reason = self._reason_of_death(holder, found)
            if reason is None:
                return False
            write_lease(self._candidate, self._content)
            if read_lease(self.path) != found:
                return False
            rename(self._candidate, self.path)
            time.sleep(self.timeouts.settle)
            if read_lease(self.path).content != self._content:
                # A third run was faster.
                return False
        except FileNotFoundError:
            # The holder has released it meanwhile.
            return False
        LOG.warning(f"{self.path}: {holder or UNKNOWN}, {reason}: this run takes over")
        return True

    def _reason_of_death(self, holder: Holder | None, found: LeaseContent) -> str | None:
        """Return the evidence that the holder is dead, None while that is unknown.

        Raises:
            UserError: The holder lives.
        """
        dead = None
        if holder is not None:
            dead = holder.is_dead()
        if dead:
            return "has ended"
        if dead is False or self._monitor.look(found.content, found.heartbeat):
            raise UserError(self._refusal(holder))
        expiry = self.timeouts.expiry
        if not found.content:
            # The holder of an empty file sends no heartbeats: it is creating the file, or has died meanwhile.
            expiry = self.timeouts.heartbeat_interval
        if self._monitor.num_looks == 1:
            LOG.warning(f"{self.path} is held by {holder or UNKNOWN}: waiting {expiry:.0f} s for its heartbeat")
        if self._monitor.silent < expiry:
            return None
        return f"has given no heartbeat for {expiry:.0f} s"

    def _send_heartbeats(self) -> None:
        while not self._over.wait(self.timeouts.heartbeat_interval):
            # After an error, the next heartbeat tries again.
            with suppress(OSError, UserError):
                self._renew()

    def _renew(self) -> None:
        """Send a heartbeat, or note that another run has taken the lease."""
        with self._mutex:
            now = time.clock_gettime(CLOCK)
            new_holder: Holder | None = None
            try:
                content = renew_lease(self.path, self._content)
                if content == self._content:
                    self._renewed = now
                    return
                new_holder = read_holder(content)
            except FileNotFoundError:
                # Before expiry no other run takes over, so a user has removed the file.
                if now - self._renewed < self.timeouts.expiry and self._create():
                    self._renewed = now
                    return
                # Raises OSError if the file system is not mounted.
                self.path.parent.stat()
                if self.path.exists():
                    # The file system was mounted after the file was opened: try again.
                    raise
            by = new_holder or "another process"
            self._reason_of_loss = (
                f"run.directory {self.path.parent} was taken over by {by}. Process {os.getpid()} on host "
                f"{socket.gethostname()}, whose last heartbeat was {now - self._renewed:.0f} s ago, ends here and writes "
                "nothing more"
            )

    def _refusal(self, holder: Holder | None) -> str:
        if holder is None:
            return f"run.directory {self.path.parent} is in use by {UNKNOWN}, see {self.path}: choose another folder"
        return (
            f"run.directory {self.path.parent} is in use by a run: {holder}. Wait for it, stop it (kill -TERM {holder.pid} on "
            f"{holder.host} lets it write a checkpoint), or choose another folder"
        )


@contextmanager
def hold(path: Path, topology: Topology, timeouts: LeaseTimeouts = DEFAULT_TIMEOUTS) -> Iterator[Lease]:
    """Hold a lease while the block runs. Collective: ranks enter once the main rank has the lease.

    Args:
        path: File of the lease.
        topology: The ranks.
        timeouts: Times of the lease, the same for all runs that may use the folder.

    Yields:
        The lease.

    Raises:
        UserError: On all ranks: a live run holds it.
        OSError: On all ranks: the file cannot be written.
    """
    # Imported here, because it imports torch, which commands that only check a lease do without.
    from megatape.distributed.exchange import on_main

    lease = Lease(path, timeouts)
    # Repeated, so that no collective waits for long.
    while not on_main(lease.attempt, topology):
        pass
    try:
        yield lease
    finally:
        lease.release()
