"""Which process holds what a file says is taken, and whether that process has ended."""

import json
import math
import os
import secrets
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from megatape.files import as_type, parse_json

NONCE_DIGITS = 16  # hexadecimal: what tells one holder from all others


@dataclass(frozen=True)
class Holder:
    """The process that holds a lease or a claim. machine: boot and process namespace within which `pid` means something, empty
    if unknown. started: when the process started, in ticks since boot. since: when it took what it holds."""

    host: str
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    machine: str
    started: str
    since: str
    nonce: str

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}, since {self.since}"

    def content(self) -> bytes:
        """What the file holds."""
        return json.dumps(asdict(self)).encode()

    def is_dead(self) -> bool | None:
        """Whether the process has ended, None if that cannot be seen from here."""
        if not self.machine or self.machine != _machine():
            return None
        try:
            return _started(self.pid) != self.started
        except OSError:  # ended, or hidden because it is another user's
            return not _exists(self.pid)

    def is_stopped(self) -> bool:
        """Whether the process is stopped by SIGSTOP or a debugger. False, too, if that cannot be seen from here."""
        try:
            return self.is_dead() is False and _stat(self.pid)[0] in "Tt"
        except OSError:
            return False


class HeartbeatMonitor:
    """Measures for how long a holder has given no heartbeat, by the clock of this process.

    Clocks of hosts and file servers may be wrong. So the time of a heartbeat shows only whether it
    is a new one.

    Args:
        max_gap: Seconds between two looks that count at most. While a file server is away nobody
            can look, and the holder cannot give its heartbeat either.

    Attributes:
        silent: Seconds without a new heartbeat, 0 at the first look.
        num_looks: How often this process has looked.
    """

    def __init__(self, max_gap: float = math.inf) -> None:
        self.max_gap = max_gap
        self.silent, self.num_looks = 0.0, 0
        self._seen: tuple[bytes, float] | None = None
        self._looked = 0.0

    def look(self, content: bytes, beat: float) -> bool:
        """Record the content and the heartbeat of a file. Returns whether they changed since the last look."""
        now, before = time.monotonic(), self._seen
        changed = before not in (None, (content, beat))
        self.silent = self.silent + min(now - self._looked, self.max_gap) if before and not changed else 0.0
        self._seen, self._looked, self.num_looks = (content, beat), now, self.num_looks + 1
        return changed


def this_process() -> Holder:
    """This process, as the holder of something new."""
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    machine = _machine()
    started = _started(os.getpid()) if machine else ""
    return Holder(socket.gethostname(), os.getpid(), machine, started, now, secrets.token_hex(NONCE_DIGITS // 2))


def read_holder(content: bytes) -> Holder | None:
    """The holder that a file names, None if it names none: it is just being written, or was corrupted."""
    try:
        return as_type(parse_json(content), Holder)
    except ValueError:
        return None


def _machine() -> str:
    """Boot and process namespace of this process; containers of one machine have their own process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process of this machine started, since a process id may be used again; empty if it has ended.

    Raises OSError if the process table has no such process, or does not show it."""
    fields = _stat(pid)
    return "" if fields[0] in "ZX" else fields[19]  # a zombie has ended, though its parent has not noticed


def _stat(pid: int) -> list[str]:
    """The entry of the process table: first the state, then numbers (proc(5)). Raises OSError without one."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _exists(pid: int) -> bool:
    """Whether this machine has such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
