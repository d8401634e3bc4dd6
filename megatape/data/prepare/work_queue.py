"""Hands out numbered work to processes that share a folder, and waits for work of other processes."""

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
    """Numbered parts of the work of all processes.

    Attributes:
        name: Name of the step, empty for the last one.
        count: Number of its parts.
        done: Lists the numbers of the finished parts.
        work: Processes a part, and renews its lease.
    """

    name: str
    count: int
    done: Callable[[], set[int]]
    work: Callable[[int, UnitLease], None]

    def lease_name(self, number: int) -> str:
        """Return the name of a part's lease."""
        if not self.name:
            return unit_name(number)
        return f"{unit_name(number)}.{self.name}"


class WorkQueue:
    """The work of one process, which takes leases in the folder.

    Args:
        leases: Leases of the processes that share the folder.
        task: Share of this machine. It starts with this share.
        warn: Shows a line to the user.
    """

    def __init__(self, leases: FolderLeases, task: Task, warn: Callable[[str], None]) -> None:
        self._leases = leases
        self._task = task
        self._warn = warn
        # Random offset, so that processes start with different units.
        self._offset = secrets.randbelow(2**31)
        # Seconds since this process last had work, and the holder shown to the user.
        self._waited = 0.0
        self._holder = ""

    def run(self, step: Step) -> Iterator[float]:
        """Process parts of a step that nobody else is working on, until all are finished.

        Each round takes two listings and tries one lease, so that idle processes do not burden the shared file system.

        Yields:
            Seconds to wait for other processes.
        """
        names = [step.lease_name(number) for number in range(step.count)]
        while True:
            remaining = sorted(set(range(step.count)) - step.done())
            if not remaining:
                return
            held = self._leases.held()
            free = [number for number in remaining if names[number] not in held]
            number = self.choose(remaining, free)
            with self._leases.hold(names[number]) as lease:
                if lease is not None and number not in step.done():
                    step.work(number, lease)
                    self._waited = 0.0
            if lease is None:
                yield self.pause(names[number])

    def choose(self, remaining: Sequence[int], free: Sequence[int]) -> int:
        """Choose the number to try, of this task's share first.

        If other processes are running, the choice is random, so that they do not all try the same number.

        Args:
            remaining: Unfinished numbers.
            free: Unfinished numbers without a lease.
        """
        share = [number for number in free if number % self._task.count == self._task.index]
        options = share or free
        if options and len(free) == len(remaining):
            return options[0]
        self._offset += 1
        # Try leased numbers as well, in case the process that holds the lease has died.
        options = options or remaining
        return options[self._offset % len(options)]

    def pause(self, name: str) -> float:
        """Return the seconds to wait for the holder of a lease. Tells the user once it has waited for long.

        The time is random, and longer the longer this process has waited.

        Args:
            name: Name of the lease.
        """
        timeouts = self._leases.timeouts
        longest = max(timeouts.heartbeat_interval, timeouts.poll_interval)
        pause = random.uniform(0.5, 1.5) * min(max(timeouts.poll_interval, self._waited / 3), longest)
        self._waited += pause
        if self._waited > 2 * timeouts.heartbeat_interval:
            holder = self._leases.holder(name)
            if holder != self._holder:
                self._holder = holder
                self._warn(
                    f"waiting for {holder}: it lasts until that process is done, ends, or is stopped or unreachable for "
                    f"{timeouts.expiry:.0f} s"
                )
        return pause
