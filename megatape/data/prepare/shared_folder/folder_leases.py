"""Leases in the folder of an unfinished preparation.

A lease is named after its work: `00012` for the write pass over unit 12, `00012.verdicts` for the first pass over it,
`00000.reference` for documents of other data directories, `00000.divide`, `00001.compare`, `00000.near` and `00001.collect` for
the steps of the decision pass, `plan` and `finish`.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from megatape.data.prepare.shared_folder.unit_lease import UnitLease
from megatape.reliability.lease import LeaseTimeouts
from megatape.reliability.lease.heartbeat_monitor import HeartbeatMonitor
from megatape.reliability.lease.holder import read_holder

# Suffix of the files. The names here and below must stay: commands of another version may share the folder.
LEASE_SUFFIX = ".claim"
# Suffixes of numbered leases. The write pass has none.
FIRST_PASS = "verdicts"
REFERENCE = "reference"
DIVISION = "divide"
COMPARISON = "compare"
NEAR_DECISION = "near"
COLLECTION = "collect"
# Names of leases without a number.
PLANNING = "plan"
ASSEMBLY = "finish"


class FolderLeases:
    """Leases of all processes sharing a folder, as one of them sees them."""

    def __init__(self, folder: Path, timeouts: LeaseTimeouts) -> None:
        self.timeouts = timeouts
        self._folder = folder
        # Lease name -> monitor of its heartbeats.
        self._monitors: defaultdict[str, HeartbeatMonitor] = defaultdict(HeartbeatMonitor)

    @contextmanager
    def hold(self, name: str) -> Iterator[UnitLease | None]:
        """Hold a lease, or yield None if another process holds it."""
        lease = UnitLease(self.path_of(name), self.timeouts, self._monitors[name])
        if not lease.acquire():
            yield None
            return
        try:
            yield lease
        finally:
            lease.release()

    def holder(self, name: str) -> str:
        """Return the holder of a lease, for messages."""
        path = self.path_of(name)
        with suppress(OSError):
            return f"{path}, which {read_holder(path.read_bytes()) or 'an unknown process'} holds"
        return str(path)

    def leased(self) -> set[str]:
        """Return the names of all leases held by any process, with one listing."""
        return {path.name.removesuffix(LEASE_SUFFIX) for path in self._folder.glob(f"*{LEASE_SUFFIX}")}

    def release_dead(self, pid: int) -> list[int]:
        """Release the leases of an ended process on this machine. Returns the numbers of its units."""
        released = []
        for name in self.leased():
            # The lease may have been released meanwhile.
            with suppress(OSError):
                path = self.path_of(name)
                holder = read_holder(path.read_bytes())
                if holder and holder.pid == pid and holder.is_dead():
                    path.unlink()
                    number = name.partition(".")[0]
                    if number.isdigit():
                        released.append(int(number))
        return released

    def path_of(self, name: str) -> Path:
        return self._folder / f"{name}{LEASE_SUFFIX}"
