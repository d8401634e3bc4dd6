"""Pace of a rank: current phase with an adaptive timeout, and busy share of its steps, for detecting stragglers."""

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

# Timeout of a phase, as a multiple of its median duration.
FACTOR = 10.0
# Measured steps before using the shortest timeout. The first step allocates and compiles, perhaps on one rank alone.
MIN_DURATIONS = 2
# Newest durations in a median. Older ones are dropped, because a run may become slower.
WINDOW = 64
# Seconds after which waiting for files counts as a phase. A rank freezing earlier keeps the shorter timeout.
SHORT_WAIT = 1.0


class PhaseKind(Enum):
    """Kinds of work whose durations are measured."""

    STEP = auto()
    EVALUATION = auto()
    SAVE = auto()


@dataclass(frozen=True)
class Phase:
    """Present activity of a rank.

    Attributes:
        name: Description for people, such as "step 7".
        timeout: Seconds that other ranks may wait for this one.
    """

    name: str
    timeout: float


class Work(NamedTuple):
    """Kind and size of work, which determine its duration. Each size may compile anew."""

    kind: PhaseKind
    size: int


class Pace:
    """Current phase of a rank, written by its main thread and read by the watch.

    Args:
        timeouts: Minimum timeouts, and those of phases without measured durations.

    Attributes:
        timeout_shortened: Set when the timeout becomes shorter. Other ranks must learn about it at once: until then they would
            give this rank the longer timeout if it freezes.
        warnings: Warnings about stragglers, for the main thread to report.
    """

    def __init__(self, timeouts: WatchTimeouts = DEFAULT_TIMEOUTS) -> None:
        self._timeouts = timeouts
        self.timeout_shortened = threading.Event()
        self.warnings: deque[str] = deque()
        self._phase = Phase("starting", timeouts.stall)
        # Phase of waiting for files, and when it started.
        self._wait: tuple[Phase, float] | None = None
        self._busy_shares: deque[float] = deque(maxlen=WINDOW)
        # Newest durations in seconds.
        self._durations: dict[Work, deque[float]] = {}
        # Work of the current phase, and when it started.
        self._entered: tuple[Work, float] | None = None
        self._background: Phase | None = None

    @property
    def phase(self) -> Phase:
        """Current phase."""
        # Read once, because the main thread may end it meanwhile.
        wait = self._wait
        if wait is not None:
            phase, started = wait
            if time.monotonic() - started > SHORT_WAIT:
                return phase
        return self._phase

    @property
    def background(self) -> Phase | None:
        """Current phase of the background thread, None if idle."""
        return self._background

    @property
    def busy_share(self) -> float | None:
        """Median of the recorded shares, None for fewer than WINDOW."""
        shares = list(self._busy_shares)
        if len(shares) < WINDOW:
            return None
        return statistics.median(shares)

    def enter(self, kind: PhaseKind, name: str, size: int = 0) -> None:
        """End the current phase and enter the next one.

        Args:
            kind: Kind of work.
            name: Description for people.
            size: Size of the work, if its duration depends on it.
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

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Mark the block as waiting for files, which becomes the current phase after SHORT_WAIT."""
        self._wait = Phase(name, self._timeouts.stall), time.monotonic()
        try:
            yield
        finally:
            lasted = self.phase is not self._phase
            self._wait = None
            if lasted:
                self.timeout_shortened.set()

    @contextmanager
    def in_background(self, kind: PhaseKind, name: str, size: int = 0) -> Iterator[None]:
        """Mark the block as a phase of the background thread. Only one such block may run at a time.

        Args:
            kind: Kind of work.
            name: Description for people.
            size: Size of the work, if its duration depends on it.
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
        """Record the share of a step in which this rank waited for no other."""
        self._busy_shares.append(share)

    def _record(self, work: Work, seconds: float) -> None:
        self._durations.setdefault(work, deque(maxlen=WINDOW)).append(seconds)

    def _timeout(self, work: Work) -> float:
        """Return a timeout in seconds, derived from earlier durations."""
        durations = self._durations.get(work, ())
        if not durations:
            return self._timeouts.stall
        least = self._timeouts.long
        if work.kind is PhaseKind.STEP and len(durations) >= MIN_DURATIONS:
            least = self._timeouts.step
        return max(least, FACTOR * statistics.median(durations))
