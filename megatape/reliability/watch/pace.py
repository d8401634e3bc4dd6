"""Pace of a rank: its present phase with an adaptive timeout, and the busy share of its steps, for detecting stragglers."""

import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from megatape.reliability.watch.timeouts import DEFAULT_TIMEOUTS, WatchTimeouts

# Timeout of a phase, in medians of its durations.
FACTOR = 10.0
# Measured steps before the shortest timeout. The first step allocates and compiles, perhaps on one rank alone.
MIN_DURATIONS = 2
# Number of the newest durations in a median, because a run may become slower.
WINDOW = 64
# Seconds after which waiting for files counts as a phase. A rank that freezes before keeps the shorter timeout.
SHORT_WAIT = 1.0


class PhaseKind(Enum):
    """Kinds of work whose durations are measured."""

    STEP = auto()
    EVALUATION = auto()
    SAVE = auto()


@dataclass(frozen=True)
class Phase:
    """Present work of a rank.

    Attributes:
        name: Description for people, such as "step 7".
        timeout: Timeout in seconds: how long other ranks may wait for this one.
    """

    name: str
    timeout: float


class Work(NamedTuple):
    """Works of the same kind and size have similar durations.

    Attributes:
        kind: Kind of the work.
        size: Size of the work: each size has durations of its own, and may compile anew.
    """

    kind: PhaseKind
    size: int


class Pace:
    """Present phase of a rank, written by its main thread and read by others.

    Args:
        timeouts: Minimum timeouts, also used while a phase has too few measured durations. Ignored without a watchdog.

    Attributes:
        timeout_shortened: Event that is set when the timeout becomes shorter. Other ranks must learn of it at once: until then
            they give this rank the longer timeout if it freezes.
        warnings: Warnings about stragglers, for the main thread to report.
    """

    def __init__(self, timeouts: WatchTimeouts = DEFAULT_TIMEOUTS) -> None:
        self._timeouts = timeouts
        self.timeout_shortened = threading.Event()
        self.warnings: deque[str] = deque()
        self._phase = Phase("starting", timeouts.stall)
        # Waiting for files, and the time at which it began.
        self._wait: tuple[Phase, float] | None = None
        self._busy_shares: deque[float] = deque(maxlen=WINDOW)
        # Seconds of the newest works.
        self._durations: dict[Work, deque[float]] = {}
        # Work of the present phase, and the time at which it began.
        self._entered: tuple[Work, float] | None = None
        self._background: Phase | None = None

    @property
    def phase(self) -> Phase:
        """The present phase."""
        # Read once, because the main thread may end it meanwhile.
        wait = self._wait
        if wait is not None:
            phase, began = wait
            if time.monotonic() - began > SHORT_WAIT:
                return phase
        return self._phase

    def enter(self, kind: PhaseKind, name: str, size: int = 0) -> None:
        """End the present phase and begin another.

        Args:
            kind: Kind of the new phase.
            name: Description for people.
            size: Size of the work.
        """
        now = time.monotonic()
        if self._entered:
            ended, since = self._entered
            self._record(ended, now - since)
        work = Work(kind, size)
        self._entered = work, now
        before = self._phase.timeout
        self._phase = Phase(name, self._timeout(work))
        if self._phase.timeout < before:
            self.timeout_shortened.set()

    def _record(self, work: Work, seconds: float) -> None:
        """Record the duration of a phase."""
        self._durations.setdefault(work, deque(maxlen=WINDOW)).append(seconds)

    def _timeout(self, work: Work) -> float:
        """Return the timeout of a phase in seconds, derived from the durations of earlier ones."""
        durations = self._durations.get(work, ())
        if not durations:
            return self._timeouts.stall
        least = self._timeouts.long
        if work.kind is PhaseKind.STEP and len(durations) >= MIN_DURATIONS:
            least = self._timeouts.step
        return max(least, FACTOR * statistics.median(durations))

    @property
    def background(self) -> Phase | None:
        """Current work of the background thread, None if it has none."""
        return self._background

    @contextmanager
    def in_background(self, kind: PhaseKind, name: str, size: int = 0) -> Iterator[None]:
        """Mark the block as work of the background thread. It is measured like a phase of this kind and size.

        Only one such block may run at a time.

        Args:
            kind: Kind of the work.
            name: Description in messages.
            size: Size of the work.
        """
        started = time.monotonic()
        work = Work(kind, size)
        self._background = Phase(name, self._timeout(work))
        try:
            yield
        finally:
            self._background = None
        self._record(work, time.monotonic() - started)

    def record_busy(self, share: float) -> None:
        """Record the share of a step's time in which this rank waited for no other."""
        self._busy_shares.append(share)

    @property
    def busy_share(self) -> float | None:
        """Median of the recorded shares, None until there are WINDOW of them."""
        shares = list(self._busy_shares)
        if len(shares) < WINDOW:
            return None
        return statistics.median(shares)

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Mark the block as waiting for files. It has a phase of its own once it lasts SHORT_WAIT."""
        self._wait = Phase(name, self._timeouts.stall), time.monotonic()
        try:
            yield
        finally:
            lasted = self.phase is not self._phase
            self._wait = None
            if lasted:
                self.timeout_shortened.set()
