"""Shares numbered work among processes that share a folder, and waits for other processes' work."""

import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from megatape.data.prepare.queue.task import Task
from megatape.data.prepare.shared_folder.folder import unit_name
from megatape.data.prepare.shared_folder.folder_leases import FolderLeases
from megatape.data.prepare.shared_folder.unit_lease import UnitLease

# A process lists the parts again after this many that turned out to be finished or leased.
MAX_CONSECUTIVE_FAILURES = 8


@dataclass(frozen=True)
class Step:
    """Step of a preparation: numbered parts, such as the units of a pass, that processes finish in any order.

    Attributes:
        lease_suffix: Distinguishes the step's leases from those of other steps, see folder_leases.py. None: no suffix.
        count: Number of parts.
        done: Lists the finished parts.
        is_done: Whether a part is finished, without a listing.
        work: Processes a part, renewing its lease.
    """

    lease_suffix: str | None
    count: int
    done: Callable[[], set[int]]
    is_done: Callable[[int], bool]
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

        One listing of the results and one of the leases serve for all parts that other processes leave free. So each part takes
        a few calls to the file system, regardless of the number of parts. An idle process tries one lease after each pause.

        Yields:
            Seconds to wait for other processes.
        """
        while True:
            remaining = sorted(set(range(step.count)) - step.done())
            if not remaining:
                return
            leased = self._leases.leased()
            free = [number for number in remaining if step.lease_name(number) not in leased]
            has_processed = False
            num_failures = 0
            for number in self.candidates(remaining, free):
                # Until this process has worked on a part, its listing is too recent for a check to be worth a call.
                was_finished = has_processed and step.is_done(number)
                if not was_finished and self._process(step, number):
                    has_processed = True
                    num_failures = 0
                else:
                    num_failures += 1
                if num_failures == MAX_CONSECUTIVE_FAILURES:
                    break
            if not has_processed:
                yield self.pause(step.lease_name(number))

    def _process(self, step: Step, number: int) -> bool:
        """Process a part unless it is finished, or another process is working on it. Returns whether it was processed here."""
        with self._leases.hold(step.lease_name(number)) as lease:
            # Another process may have finished the part just before.
            if lease is None or step.is_done(number):
                return False
            step.work(number, lease)
        self._waited = 0.0
        return True

    def candidates(self, remaining: Sequence[int], free: Sequence[int]) -> Iterator[int]:
        """Yield the parts to try, starting with this task's share.

        If other processes are running, the first one is random, so that they do not all try the same parts.

        Args:
            remaining: Unfinished parts.
            free: Unfinished parts without a lease.
        """
        share = []
        others = []
        for number in free:
            if number % self._task.count == self._task.index:
                share.append(number)
            else:
                others.append(number)
        self._offset += 1
        if not free:
            # The process holding a lease may have died.
            yield remaining[self._offset % len(remaining)]
            return
        is_alone = len(free) == len(remaining)
        for numbers in (share, others):
            first = 0
            if numbers and not is_alone:
                first = self._offset % len(numbers)
            yield from numbers[first:]
            yield from numbers[:first]

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
