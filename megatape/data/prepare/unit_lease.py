"""Which process works on what, so that several do not do the same work, on any file system that they share.

A claim is a file that names its process and whose time of change is the process's heartbeat. It is created exclusively, which
NFS does atomically, but replaced without further care: claims save work, and whoever relies on one must survive that two
processes have it.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from megatape.runtime.holder import HeartbeatMonitor, read_holder, this_process


@dataclass(frozen=True)
class Patience:
    """How long processes wait for each other, in seconds.

    Attributes:
        period: between heartbeats.
        silence: in which another process sees none, until the claim of a process that is stopped or on another machine is void;
            NFS shows changes up to 60 s late.
        poll: between looks at what other processes work on.
    """

    period: float = 10.0
    silence: float = 120.0
    poll: float = 1.0


USUAL = Patience()


class Claim:
    """The claim in the file `path`. monitor: of the heartbeats that this process has seen there."""

    def __init__(self, path: Path, patience: Patience, monitor: HeartbeatMonitor) -> None:
        self.path, self.patience, self.monitor = path, patience, monitor
        self._content = this_process().content()
        self._beaten = 0.0

    def take(self) -> bool:
        """Whether the claim is this process's now: nobody had it, or only a process that is dead or silent.

        A process of this machine that runs keeps its claim without heartbeats: it may be busy.
        """
        if self._create():
            return True
        try:
            content, beat = self.path.read_bytes(), self.path.stat().st_mtime
        except FileNotFoundError:  # released just now
            return self._create()
        self.monitor.look(content, beat)
        holder = read_holder(content)
        dead = None if holder is None else holder.is_dead()
        runs = holder is not None and dead is False and not holder.is_stopped()
        # An empty file has no holder that gives heartbeats: it is being created, or its process died meanwhile.
        silence = self.patience.silence if content else self.patience.period
        if runs or (not dead and self.monitor.silent < silence):
            return False
        self.path.unlink(missing_ok=True)
        return self._create()

    def beat(self) -> None:
        """Give a heartbeat, if it is time."""
        now = time.monotonic()
        if now - self._beaten > self.patience.period:
            self._beaten = now
            with suppress(OSError):  # taken over, or the file system is away: what the claim protects does not depend on it
                os.utime(self.path)

    def release(self) -> None:
        """Let others have it."""
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


@contextmanager
def claimed(path: Path, patience: Patience, monitor: HeartbeatMonitor) -> Iterator[Claim | None]:
    """Hold the claim in the file `path` while the block runs; None if another process has it. monitor: as `Claim` takes it."""
    claim = Claim(path, patience, monitor)
    if not claim.take():
        yield None
        return
    try:
        yield claim
    finally:
        claim.release()
