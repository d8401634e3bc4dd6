"""Lease on a run directory, so that one run at a time uses it.

A run's main rank holds the lease: a file naming it, whose time of change is its heartbeat. Files are created and renamed
atomically, and a run uses its own monotonic clock to check whether another one's heartbeat changes. So neither file locks nor
correct clocks are needed.

A second run ends with an error while the holder is alive, and takes over when it is dead. On the same machine the process table
shows that at once. On another machine, the holder counts as dead after LeaseTimeouts.expiry without a heartbeat.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from megatape.distributed.topology import Topology
from megatape.errors import LeaseLost, UserError
from megatape.reliability.lease.holder import Holder, read_holder, this_process
from megatape.reliability.lease.lease_file import create_lease, renew_lease
from megatape.reliability.lease.takeover import Takeover
from megatape.reliability.lease.timeouts import DEFAULT_TIMEOUTS, LeaseTimeouts
from megatape.utils.files.files import read_regular
from megatape.utils.processes.process_table import seconds_since_boot


class Lease:
    """Lease on a folder. Only the main rank takes it: on other ranks, `check` and `release` do nothing.

    Args:
        path: The lease's file.
        timeouts: Lease timeouts, the same for all runs that may use the folder.
        holder: This process as a holder.
        clock: Returns a monotonic time in seconds, which also counts while the machine is suspended.

    Attributes:
        nonce: Unique name of the holder.
    """

    def __init__(
        self,
        path: Path,
        timeouts: LeaseTimeouts = DEFAULT_TIMEOUTS,
        holder: Holder | None = None,
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        if holder is None:
            holder = this_process()
        self.path = path
        self.timeouts = timeouts
        self.nonce = holder.nonce
        self._content = holder.content()
        self._takeover = Takeover(path, holder, timeouts)
        self._clock = clock
        self._is_held = False
        # When the last heartbeat was sent.
        self._renewed = 0.0
        self._reason_of_loss: str | None = None
        self._mutex = threading.Lock()
        self._silenced = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, name="lease", daemon=True)

    def attempt(self) -> bool:
        """Try to take the lease, for about one heartbeat interval.

        Returns:
            Whether it is held now. If not, its holder may be dead: try again.

        Raises:
            UserError: A live run holds it.
        """
        if not self._takeover.attempt():
            return False
        self._is_held = True
        self._renewed = self._clock()
        self._thread.start()
        return True

    @property
    def is_late(self) -> bool:
        """Whether heartbeats fail, for example while the file server is away."""
        return self._is_held and self._silent > self.timeouts.late

    @property
    def _silent(self) -> float:
        """Seconds since this run's last heartbeat."""
        return self._clock() - self._renewed

    def check(self) -> None:
        """Check the lease before writing into the folder. Reads the file only when heartbeats are late.

        Raises:
            LeaseLost: Another run has taken over the lease.
            OSError: The file cannot be read, and another run may take over before a write started now has ended.
        """
        if self.is_late:
            try:
                self._renew()
            except OSError:
                if self._silent > self.timeouts.safe_silence:
                    raise
        if self._reason_of_loss is not None:
            raise LeaseLost(self._reason_of_loss)

    def wait(self, requested: Callable[[], bool], warn: Callable[[str], object]) -> None:
        """Call `check` until it raises no OSError.

        Args:
            requested: Returns whether the run is asked to stop, which ends waiting.
            warn: Prints a warning.

        Raises:
            LeaseLost: Another run has taken over the lease.
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
        if not self._is_held:
            return
        self.stop_heartbeats()
        self._is_held = False
        with suppress(OSError, UserError):
            if read_regular(self.path) == self._content:
                self.path.unlink()

    def stop_heartbeats(self) -> None:
        """Stop sending heartbeats. The lease is held until it expires for others."""
        self._silenced.set()
        self._thread.join()

    def _send_heartbeats(self) -> None:
        while not self._silenced.wait(self.timeouts.heartbeat_interval):
            # After an error, the next heartbeat tries again.
            with suppress(OSError, UserError):
                self._renew()

    def _renew(self) -> None:
        """Send a heartbeat, or note that another run has taken over."""
        with self._mutex:
            now = self._clock()
            new_holder: Holder | None = None
            try:
                content = renew_lease(self.path, self._content)
                if content == self._content:
                    self._renewed = now
                    return
                new_holder = read_holder(content)
            except FileNotFoundError:
                # Before expiry no other run takes over, so a user has removed the file.
                if now - self._renewed < self.timeouts.expiry and create_lease(self.path, self._content):
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


@contextmanager
def hold(path: Path, topology: Topology, timeouts: LeaseTimeouts = DEFAULT_TIMEOUTS) -> Iterator[Lease]:
    """Hold a lease while the block runs. Collective: ranks enter once the main rank has the lease.

    Args:
        path: The lease's file.
        topology: All ranks.
        timeouts: Lease timeouts, the same for all runs that may use the folder.

    Raises:
        UserError: A live run holds it. Raised on all ranks.
        OSError: The file cannot be written. Raised on all ranks.
    """
    # Imported late, because commands that only check a lease do without torch.
    from megatape.distributed.values.exchange import on_main

    lease = Lease(path, timeouts)
    # Repeated, so that no collective waits for long.
    while not on_main(lease.attempt, topology):
        pass
    try:
        yield lease
    finally:
        lease.release()
