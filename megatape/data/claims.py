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

from megatape.files import temporary_name
from megatape.runtime.holder import read_holder, this_process


@dataclass(frozen=True)
class Patience:
    """In seconds. period: between heartbeats. silence: without one, until the claim of a process on another machine is void;
    NFS shows changes up to 60 s late. poll: between looks at what other processes work on."""

    period: float = 10.0
    silence: float = 120.0
    poll: float = 1.0


USUAL = Patience()


class Claim:
    """The claim in the file `path`."""

    def __init__(self, path: Path, patience: Patience) -> None:
        self.path, self.patience = path, patience
        self._content = this_process().content()
        self._beaten = 0.0

    def take(self) -> bool:
        """Whether the claim is this process's now: nobody had it, or only a process that is dead or silent."""
        if self._create():
            return True
        try:
            content, beat = self.path.read_bytes(), self.path.stat().st_mtime
        except FileNotFoundError:  # released just now
            return self._create()
        holder = read_holder(content)
        dead = None if holder is None else holder.is_dead()
        if dead is False or (dead is None and self._now() - beat < self.patience.silence):
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

    def _now(self) -> float:
        """The present time by the file system's clock."""
        probe = temporary_name(self.path)
        try:
            probe.touch()
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)


@contextmanager
def claimed(path: Path, patience: Patience) -> Iterator[Claim | None]:
    """Hold the claim in the file `path` while the block runs; None if another process has it."""
    claim = Claim(path, patience)
    if not claim.take():
        yield None
        return
    try:
        yield claim
    finally:
        claim.release()
