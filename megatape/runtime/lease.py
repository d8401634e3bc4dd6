"""One run at a time in a folder, on any file system that hosts share.

The main rank of a run holds a lease: a file that names it, and whose time of change is its heartbeat. Files are created and
renamed atomically, and a run judges by its own monotonic clock whether another one's heartbeat changes. So neither file locks
nor correct clocks are needed.

A second run is refused while the holder lives, and takes over when it is dead. On the same machine the process table tells that
at once. On another one only silence can, and it takes Limits.silence.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from megatape.errors import LeaseLost, UserError
from megatape.files import file_system_time
from megatape.runtime.holder import HeartbeatMonitor, Holder, read_holder, this_process
from megatape.runtime.topology import Topology

LOG = logging.getLogger(__name__)

UNKNOWN = "an unknown process"
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine is suspended


@dataclass(frozen=True)
class Limits:
    """In seconds.

    period: between heartbeats. silence: in which another run looks and sees none, until a holder on another machine counts as
    dead; NFS shows changes up to 60 s late, and a heartbeat or two may be slow. settle: until a run that took over is sure that
    no other did at the same time. poll: between looks."""

    period: float = 10.0
    silence: float = 90.0
    settle: float = 1.0
    poll: float = 1.0


class Lease:
    """The lease in the file `path`. Only the main rank takes it; elsewhere `check` and `release` do nothing."""

    def __init__(self, path: Path, limits: Limits = Limits()) -> None:
        self.path, self.limits = path, limits
        holder = this_process()
        self.nonce = holder.nonce
        self._content = holder.content()
        self._candidate = path.with_name(f"{path.name}.{self.nonce}.tmp")
        self._monitor = HeartbeatMonitor(max_gap=limits.period)  # of the other's lease
        self._renewed = 0.0
        self._lost = ""
        self._mutex, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def attempt(self) -> bool:
        """Try to take the lease for about a period. Returns whether it is held now; if not, its holder may be dead: try again.

        Raises UserError if another run that is alive holds it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + self.limits.period
        try:
            while not (self._create() or self._take_over()):
                if time.monotonic() > deadline:
                    return False
                time.sleep(self.limits.poll)
        finally:
            self._candidate.unlink(missing_ok=True)
        self._renewed = time.clock_gettime(CLOCK)
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()
        return True

    @property
    def is_late(self) -> bool:
        """Whether heartbeats fail at present, as they do while the file server is away."""
        return self._thread is not None and self._silent > 2 * self.limits.period

    @property
    def _silent(self) -> float:
        """Seconds since the last heartbeat."""
        return time.clock_gettime(CLOCK) - self._renewed

    def check(self) -> None:
        """Call before writing into the folder. Looks at the file only when heartbeats are late.

        Raises LeaseLost if another run has taken the lease. Raises OSError if the file cannot be read and another run may take
        the lease before a write that begins now has ended."""
        if self.is_late:
            try:
                self._renew()
            except OSError:
                if self._silent > self.limits.silence - 2 * self.limits.period:
                    raise
        if self._lost:
            raise LeaseLost(self._lost)

    def wait(self, requested: Callable[[], bool], warn: Callable[[str], object]) -> None:
        """`check`, and wait as long as it raises OSError, unless somebody has `requested` an end. warn: prints a line.

        Raises LeaseLost if another run has taken the lease."""
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
                time.sleep(self.limits.poll)

    def release(self) -> None:
        """Remove the lease if it is held."""
        if self._thread is None:
            return
        self._over.set()
        self._thread.join()
        self._thread = None
        with suppress(OSError):
            if self.path.read_bytes() == self._content:
                self.path.unlink()

    def check_free(self) -> None:
        """Look once, without waiting for a heartbeat.

        Raises:
            UserError: If a run holds the lease, or a process of another machine whose last heartbeat
                is not old by the file system's clock: it may be alive.
        """
        try:
            content, beat = self._look()
        except FileNotFoundError:
            return
        holder = read_holder(content)
        dead = holder.is_dead() if holder else None
        if dead is False:
            raise UserError(self._refusal(holder))
        silence = self.limits.silence
        if dead is None and (now := file_system_time(self.path.parent)) - beat < silence:
            last, present = (time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds)) for seconds in (beat, now))
            raise UserError(
                f"cannot tell whether a run uses run.directory {self.path.parent}: {self.path} is held by "
                f"{holder or UNKNOWN}, last heartbeat at {last}, now it is {present} on that file system. Try again "
                f"{silence:.0f} s after its end, choose another folder, or remove the file if no run trains there"
            )

    def _create(self) -> bool:
        """Create the file unless it exists."""
        try:
            file = self.path.open("xb")
        except FileExistsError:
            return False
        with file:
            file.write(self._content)
            file.flush()
            os.fsync(file.fileno())
        return True

    def _take_over(self) -> bool:
        """Replace a dead holder's file; False if it is not known to be dead. Raises UserError if it is alive."""
        try:
            found = self._look()
            holder = read_holder(found[0])
            reason = self._death(holder, *found)
            if not reason:
                return False
            self._write_candidate()
            if self._look() != found:
                return False
            self._candidate.replace(self.path)
            time.sleep(self.limits.settle)
            if self._look()[0] != self._content:
                return False  # a third run was faster
        except FileNotFoundError:  # released in between
            return False
        LOG.warning(f"{self.path}: {holder or UNKNOWN}, {reason}: this run takes over")
        return True

    def _death(self, holder: Holder | None, content: bytes, beat: float) -> str:
        """What shows that the holder is dead, empty if that is not known yet. Raises UserError if it is alive."""
        dead = holder.is_dead() if holder else None
        if dead:
            return "has ended"
        if dead is False or self._monitor.look(content, beat):
            raise UserError(self._refusal(holder))
        # An empty file has no holder that gives heartbeats: it is being created, or its process died meanwhile.
        silence = self.limits.silence if content else self.limits.period
        if self._monitor.num_looks == 1:
            LOG.warning(f"{self.path} is held by {holder or UNKNOWN}: waiting {silence:.0f} s for its heartbeat")
        return f"has given no heartbeat for {silence:.0f} s" if self._monitor.silent >= silence else ""

    def _look(self) -> tuple[bytes, float]:
        """Content and heartbeat. Opening makes an NFS client ask the server for both."""
        with self.path.open("rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime

    def _write_candidate(self) -> None:
        with self._candidate.open("wb") as file:
            file.write(self._content)
            file.flush()
            os.fsync(file.fileno())

    def _beat(self) -> None:
        while not self._over.wait(self.limits.period):
            with suppress(OSError):  # tried again with the next heartbeat
                self._renew()

    def _renew(self) -> None:
        """Give a heartbeat, or note that another run has taken the lease."""
        with self._mutex:
            now = time.clock_gettime(CLOCK)
            try:
                with self.path.open("rb") as file:
                    content = file.read()
                    if content == self._content:
                        os.utime(file.fileno())
                        self._renewed = now
                        return
                by = str(read_holder(content) or "another process")
            except FileNotFoundError:
                # Nobody may have taken it over yet, so it was removed by hand. Later, somebody may have, and may have ended.
                if now - self._renewed < self.limits.silence and self._create():
                    self._renewed = now
                    return
                self.path.parent.stat()  # raises OSError: a file system that is not mounted shows nothing
                by = "another process"
            self._lost = (
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
def hold(path: Path, topology: Topology, limits: Limits = Limits()) -> Iterator[Lease]:
    """Hold the lease in the file `path` while the block runs. Collective: no rank goes on before the main rank has it.

    Raises UserError on all ranks if another run that is alive holds it, OSError if the file cannot be written."""
    from megatape.runtime.exchange import on_main  # here, because it imports torch, which commands that only look do without

    lease = Lease(path, limits)
    while not on_main(lease.attempt, topology):  # in turns, so that no collective waits long
        pass
    try:
        yield lease
    finally:
        lease.release()
