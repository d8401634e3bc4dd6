"""Shares numbered work among processes that share a folder, and waits for other processes' work."""

import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from megatape.data.prepare.folder import unit_name
from megatape.data.prepare.folder_leases import FolderLeases
from megatape.data.prepare.task import Task
from megatape.data.prepare.unit_lease import UnitLease


@dataclass(frozen=True)
class Step:
    """Step of a preparation: numbered parts, such as the units of a pass, that processes finish in any order.

    Attributes:
        lease_suffix: Distinguishes the step's leases from those of other steps, see folder_leases.py. None: no suffix.
        count: Number of parts.
        done: Lists the finished parts.
        work: Processes a part, renewing its lease.
    """

    lease_suffix: str | None
    count: int
    done: Callable[[], set[int]]
    work: Callable[[int, UnitLease], None]

    def lease_name(self, number: int) -> str:
        if self.lease_suffix is None:
            return unit_name(number)
        return f"{unit_name(number)}.{self.lease_suffix}"


class WorkQueue:
    """Leases work for one process, starting with the share of its machine (`task`)."""

    def __init__(self, leases: FolderLeases, task: Task, warn: Callable[[str], None]) -> None:
        self._leases = leases
        self._task = task
        self._warn = warn
        # Random offset, so that processes start with different units.
        self._offset = secrets.randbelow(2**31)
        # Seconds spent waiting since this process last had work.
        self._waited = 0.0
        # Lease holder last shown to the user.
        self._shown_holder: str | None = None

    def run(self, step: Step) -> Iterator[float]:
        """Process parts of a step that nobody else is working on, until all are finished.

        Each round takes two listings and tries one lease, so idle processes do not burden the shared file system.

        Yields:
            Seconds to wait for other processes.
        """
        names = [step.lease_name(number) for number in range(step.count)]
        while True:
            remaining = sorted(set(range(step.count)) - step.done())
            if not remaining:
                return
            leased = self._leases.leased()
            free = [number for number in remaining if names[number] not in leased]
            number = self.choose(remaining, free)
            with self._leases.hold(names[number]) as lease:
                if lease is not None and number not in step.done():
                    step.work(number, lease)
                    self._waited = 0.0
            if lease is None:
                yield self.pause(names[number])

    def choose(self, remaining: Sequence[int], free: Sequence[int]) -> int:
        """Choose the part to try next, starting with this task's share.

        If other processes are running, the choice is random, so that they do not all try the same part.

        Args:
            remaining: Unfinished parts.
            free: Unfinished parts without a lease.
        """
        share = [number for number in free if number % self._task.count == self._task.index]
        candidates = share or free
        if candidates and len(free) == len(remaining):
            return candidates[0]
        self._offset += 1
        # Try leased parts as well, in case the process holding the lease has died.
        candidates = candidates or remaining
        return candidates[self._offset % len(candidates)]

    def pause(self, name: str) -> float:
        """Return the seconds to wait for the lease of this name. Shows its holder to the user after waiting for long.

        The pause is random, and grows with the time that this process has waited.
        """
        timeouts = self._leases.timeouts
        longest = max(timeouts.heartbeat_interval, timeouts.poll_interval)
        pause = random.uniform(0.5, 1.5) * min(max(timeouts.poll_interval, self._waited / 3), longest)
        self._waited += pause
        if self._waited > 2 * timeouts.heartbeat_interval:
            holder = self._leases.holder(name)
            if holder != self._shown_holder:
                self._shown_holder = holder
                self._warn(
                    f"waiting for {holder}: it lasts until that process is done, ends, or is stopped or unreachable for "
                    f"{timeouts.expiry:.0f} s"
                )
        return pause
