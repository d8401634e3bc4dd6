"""Lease of a run's folder, so that one run at a time uses it, on any file system that hosts share.

The main rank of a run holds a lease: a file that names it, and whose time of change is its
heartbeat. Files are created and renamed atomically, and a run judges by its own monotonic clock
whether another one's heartbeat changes. So neither file locks nor correct clocks are needed.

A second run is refused while the holder lives, and takes over when it is dead. On the same machine
the process table shows that at once. On another one it is dead after LeaseTimeouts.expiry without
a heartbeat. psutil would take a process of another user, which the table may hide, for one that has
ended, and derives start times from a clock that may be set: so the table is read here.
"""

import json
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from megatape.distributed.topology import Topology
from megatape.errors import LeaseLost, UserError
from megatape.utils.files import as_type, file_system_time, open_regular, parse_json, read_regular, rename
from megatape.utils.units import format_time
from megatape.utils.waiting import wait_until

NONCE_DIGITS = 16  # hexadecimal digits of a holder's unique name


@dataclass(frozen=True)
class Holder:
    """Process that holds a lease or a claim.

    Attributes:
        host: Name of its host.
        pid: Process id.
        machine: Boot and process namespace to which `pid` belongs, empty if unknown.
        started: Start time of the process in ticks since boot, empty if unknown.
        since: Time at which it became the holder, in UTC.
        nonce: Unique name of the holder.
    """

    host: str
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    machine: str
    started: str
    since: str
    nonce: str

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}, since {self.since}"

    def content(self) -> bytes:
        """Content of the lock file."""
        return json.dumps(asdict(self)).encode()

    def is_dead(self) -> bool | None:
        """Whether the process has ended, None where this process cannot tell."""
        if not self.machine or self.machine != _machine_id():
            return None
        try:
            return _start_time(self.pid) != self.started
        except OSError:  # ended, or hidden because it is another user's
            return not _pid_exists(self.pid)

    def is_stopped(self) -> bool:
        """Whether SIGSTOP or a debugger stopped the process. False if unknown."""
        try:
            return self.is_dead() is False and _process_stat(self.pid)[0] in "Tt"
        except OSError:
            return False


class HeartbeatMonitor:
    """Measures the time since a holder's last heartbeat by the clock of this process.

    Clocks of hosts and file servers may be wrong. So the time of a heartbeat shows only whether it
    is a new one.

    Args:
        max_gap: Maximum seconds that count between two looks. While a file server is away neither
            this process can look nor the holder send a heartbeat.

    Attributes:
        silent: Seconds without a new heartbeat, 0 at the first look.
        num_looks: Number of looks so far.
    """

    def __init__(self, max_gap: float = math.inf) -> None:
        self.max_gap = max_gap
        self.silent = 0.0
        self.num_looks = 0
        self._seen: tuple[bytes, float] | None = None
        self._looked = 0.0

    def look(self, content: bytes, beat: float) -> bool:
        """Record content and heartbeat of a file. Returns whether they have changed."""
        now = time.monotonic()
        before = self._seen
        changed = before not in (None, (content, beat))
        self.silent = self.silent + min(now - self._looked, self.max_gap) if before and not changed else 0.0
        self._seen = (content, beat)
        self._looked = now
        self.num_looks = self.num_looks + 1
        return changed


def this_process() -> Holder:
    """This process as a new holder."""
    machine = _machine_id()
    started = _start_time(os.getpid()) if machine else ""
    now = format_time(time.time())
    nonce = secrets.token_hex(NONCE_DIGITS // 2)
    return Holder(socket.gethostname(), os.getpid(), machine, started, now, nonce)


def read_holder(content: bytes) -> Holder | None:
    """Parse the content of a lock file. Returns None if it is unfinished or corrupted."""
    try:
        return as_type(parse_json(content), Holder)
    except ValueError:
        return None


def _machine_id() -> str:
    """Boot and process namespace of this process; containers have process ids of their own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Start time of a process, which tells it from later ones with its id; empty if it has ended.

    Raises:
        OSError: The process table does not show such a process.
    """
    fields = _process_stat(pid)
    return "" if fields[0] in "ZX" else fields[19]  # a zombie has ended, though its parent has not noticed


def _process_stat(pid: int) -> list[str]:
    """Entry of the process table: the state, then numbers (proc(5)). Raises OSError without one."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _pid_exists(pid: int) -> bool:
    """Whether this machine has such a process."""
    try:
        os.kill(pid, 0)
    except OSError as error:  # PermissionError for another user's
        return not isinstance(error, ProcessLookupError)
    return True


LOG = logging.getLogger(__name__)

UNKNOWN = "an unknown process"
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts time in which the machine is suspended


@dataclass(frozen=True)
class LeaseTimeouts:
    """Times in seconds.

    Attributes:
        heartbeat_interval: Time between heartbeats.
        expiry: Time without a heartbeat, as another run sees it, until a holder on another machine
            counts as dead. NFS shows changes up to 60 s late, and a heartbeat or two may be slow.
        settle: Time until a run that took over knows that no other did at the same moment.
        poll_interval: Time between two looks at the file.
    """

    heartbeat_interval: float = 10.0
    expiry: float = 90.0
    settle: float = 1.0
    poll_interval: float = 1.0


class Lease:
    """Lease of a folder, that only the main rank takes. Elsewhere `check` and `release` do nothing.

    Args:
        path: File of the lease.
        timeouts: The same for all runs that may use the folder.
    """

    def __init__(self, path: Path, timeouts: LeaseTimeouts = LeaseTimeouts()) -> None:
        self.path = path
        self.timeouts = timeouts
        holder = this_process()
        self.nonce = holder.nonce
        self._content = holder.content()
        self._candidate = path.with_name(f"{path.name}.{self.nonce}.tmp")
        self._monitor = HeartbeatMonitor(max_gap=timeouts.heartbeat_interval)  # of the other's lease
        self._renewed = 0.0
        self._lost = ""
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
        if self._lost:
            raise LeaseLost(self._lost)

    def wait(self, requested: Callable[[], bool], warn: Callable[[str], object]) -> None:
        """Call `check` until it raises no OSError.

        Args:
            requested: Whether the run is asked to stop, which ends the wait.
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
            content, beat = self._look()
        except FileNotFoundError:
            return
        holder = read_holder(content)
        dead = holder.is_dead() if holder else None
        if dead is False:
            raise UserError(self._refusal(holder))
        expiry = self.timeouts.expiry
        if dead is None and (now := file_system_time(self.path.parent)) - beat < expiry:
            raise UserError(
                f"cannot tell whether a run uses run.directory {self.path.parent}: {self.path} is held by "
                f"{holder or UNKNOWN}, last heartbeat at {format_time(beat)}, now it is {format_time(now)} on that file "
                f"system. Try again {expiry:.0f} s after its end, choose another folder, or remove the file if no run trains "
                "there"
            )

    def _create(self) -> bool:
        """Create the file unless it exists."""
        try:
            self._write(self.path, "xb")
        except FileExistsError:
            return False
        return True

    def _take_over(self) -> bool:
        """Replace the file of a dead holder.

        Returns:
            Whether this run has the lease now: not if the holder is not known to be dead.

        Raises:
            UserError: The holder is alive.
        """
        try:
            found = self._look()
            holder = read_holder(found[0])
            reason = self._death(holder, *found)
            if not reason:
                return False
            self._write(self._candidate, "wb")
            if self._look() != found:
                return False
            rename(self._candidate, self.path)
            time.sleep(self.timeouts.settle)
            if self._look()[0] != self._content:
                return False  # a third run was faster
        except FileNotFoundError:  # released in between
            return False
        LOG.warning(f"{self.path}: {holder or UNKNOWN}, {reason}: this run takes over")
        return True

    def _death(self, holder: Holder | None, content: bytes, beat: float) -> str:
        """Evidence that the holder is dead, empty while unknown. Raises UserError if it lives."""
        dead = holder.is_dead() if holder else None
        if dead:
            return "has ended"
        if dead is False or self._monitor.look(content, beat):
            raise UserError(self._refusal(holder))
        # The holder of an empty file sends no heartbeats: it creates the file, or died meanwhile.
        expiry = self.timeouts.expiry if content else self.timeouts.heartbeat_interval
        if self._monitor.num_looks == 1:
            LOG.warning(f"{self.path} is held by {holder or UNKNOWN}: waiting {expiry:.0f} s for its heartbeat")
        return f"has given no heartbeat for {expiry:.0f} s" if self._monitor.silent >= expiry else ""

    def _look(self) -> tuple[bytes, float]:
        """Content and time of the last heartbeat. Opening makes an NFS client ask the server."""
        with open_regular(self.path) as file:
            return file.read(), os.fstat(file.fileno()).st_mtime

    def _write(self, path: Path, mode: str) -> None:
        with path.open(mode) as file:
            file.write(self._content)
            file.flush()
            os.fsync(file.fileno())

    def _send_heartbeats(self) -> None:
        while not self._over.wait(self.timeouts.heartbeat_interval):
            with suppress(OSError, UserError):  # tried again with the next heartbeat
                self._renew()

    def _renew(self) -> None:
        """Send a heartbeat, or note that another run has taken the lease."""
        with self._mutex:
            now = time.clock_gettime(CLOCK)
            try:
                with open_regular(self.path) as file:
                    content = file.read()
                    if content == self._content:
                        os.utime(file.fileno())
                        self._renewed = now
                        return
                by = str(read_holder(content) or "another process")
            except FileNotFoundError:
                # Before expiry no other run takes over, so a person removed the file.
                if now - self._renewed < self.timeouts.expiry and self._create():
                    self._renewed = now
                    return
                self.path.parent.stat()  # raises OSError: a file system that is not mounted shows nothing
                if self.path.exists():
                    raise  # mounted since the file was opened: look again
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
def hold(path: Path, topology: Topology, timeouts: LeaseTimeouts = LeaseTimeouts()) -> Iterator[Lease]:
    """Hold a lease while the block runs. Collective: ranks enter once the main rank has the lease.

    Args:
        path: File of the lease.
        topology: The ranks.
        timeouts: The same for all runs that may use the folder.

    Yields:
        The lease.

    Raises:
        UserError: On all ranks: a live run holds it.
        OSError: On all ranks: the file cannot be written.
    """
    from megatape.distributed.exchange import (
        on_main,  # here, because it imports torch, which commands that only look do without
    )

    lease = Lease(path, timeouts)
    while not on_main(lease.attempt, topology):  # repeated, so that no collective waits long
        pass
    try:
        yield lease
    finally:
        lease.release()
