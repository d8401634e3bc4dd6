"""Time limits of the watch over ranks: adaptive timeouts per phase; and the busy share of a rank, for straggler detection."""

import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

from megatape.errors import UserError

STALL_VAR = "DEEPSPEED_TIMEOUT"  # minutes; DeepSpeed's own variable for the timeout of collectives
MAX_STALL = 60 * 24 * 365


@dataclass(frozen=True)
class WatchLimits:
    """Times in seconds, the same on all ranks.

    Only time in which a process runs counts: one that is stopped may be continued.

    Attributes:
        period: Interval between heartbeats.
        step: Minimum timeout of a step without a new collective. Slow steps have a longer one.
        long: Minimum timeout of an evaluation and of a save.
        stall: Timeout of a phase with no history: compilation, first read, hashing.
        silence: Time without a heartbeat until a rank counts as dead, unless its phase has a
            shorter timeout. Longer than a file system may hang: a page fault stops all threads.
        suspicion: The same once a collective has failed on any rank.
        grace: Time for a rank to exit on its own once the cause is known.
    """

    period: float = 2.0
    step: float = 60.0
    long: float = 300.0
    stall: float = 1800.0
    silence: float = 300.0
    suspicion: float = 10.0
    grace: float = 10.0

    @property
    def collectives(self) -> timedelta:
        """Timeout of collectives: later than the watch, which names the rank at fault."""
        return timedelta(seconds=self.stall + self.silence)


def limits_of_environment() -> WatchLimits:
    """The defaults, or the minutes of DEEPSPEED_TIMEOUT for every phase.

    Raises:
        UserError: The variable is not a number of minutes.
    """
    minutes = os.environ.get(STALL_VAR)
    if minutes is None:
        return WatchLimits()
    if not minutes.isdecimal() or not 1 <= int(minutes) <= MAX_STALL:
        raise UserError(f"{STALL_VAR} is {minutes!r}: give whole minutes from 1 to {MAX_STALL}, or unset it")
    return WatchLimits(**dict.fromkeys(("step", "long", "stall"), 60.0 * int(minutes)))


FACTOR = 10.0  # timeout of a phase, in medians of its durations
MIN_DURATIONS = 2  # measured steps before the shortest timeout: the first one allocates and compiles, perhaps on one rank alone
WINDOW = 64  # newest durations in a median, since a run may become slower
SHORT_WAIT = 1.0  # seconds after which a wait for files is a phase: a rank that freezes before keeps the shorter timeout


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
        limit: Timeout in seconds: how long other ranks may wait for this one.
    """

    name: str
    limit: float


class Pace:
    """Present phase of a rank, written by its main thread and read by others.

    Args:
        limits: Minimum timeouts, and that of a phase with too few measured durations; any will do where nobody watches.

    Attributes:
        limit_shortened: Set when the timeout becomes shorter. Other ranks must learn of it at once,
            for a rank that freezes before has the timeout that they know.
        warnings: Warnings on stragglers, for the main thread to report.
    """

    def __init__(self, limits: WatchLimits = WatchLimits()) -> None:
        self._limits = limits
        self.limit_shortened = threading.Event()
        self.warnings: deque[str] = deque()
        self._phase = Phase("starting", limits.stall)
        self._wait: tuple[Phase, float] | None = None  # for files, and its beginning
        self._busy_shares: deque[float] = deque(maxlen=WINDOW)
        self._durations: dict[tuple[PhaseKind, int], deque[float]] = {}  # seconds, by kind and size
        self._entered: tuple[tuple[PhaseKind, int], float] | None = None
        self._background: Phase | None = None

    @property
    def phase(self) -> Phase:
        """The present phase."""
        wait = self._wait  # once: the main thread may end it
        return wait[0] if wait and time.monotonic() - wait[1] > SHORT_WAIT else self._phase

    def enter(self, kind: PhaseKind, name: str, size: int = 0) -> None:
        """End the present phase and begin another.

        Args:
            kind: Kind of the new phase.
            name: Description for people.
            size: Size of the work: each size has durations of its own, and may compile anew.
        """
        now = time.monotonic()
        if self._entered:
            ended, since = self._entered
            self._record(*ended, now - since)
        self._entered = (kind, size), now
        before = self._phase.limit
        self._phase = Phase(name, self._limit(kind, size))
        if self._phase.limit < before:
            self.limit_shortened.set()

    def _record(self, kind: PhaseKind, size: int, seconds: float) -> None:
        """Record the duration of a phase."""
        self._durations.setdefault((kind, size), deque(maxlen=WINDOW)).append(seconds)

    def _limit(self, kind: PhaseKind, size: int) -> float:
        """Return the timeout of a phase in seconds, derived from the durations of earlier ones."""
        durations = self._durations.get((kind, size), ())
        if not durations:
            return self._limits.stall
        least = self._limits.long
        if kind is PhaseKind.STEP and len(durations) >= MIN_DURATIONS:
            least = self._limits.step
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
        self._background = Phase(name, self._limit(kind, size))
        try:
            yield
        finally:
            self._background = None
        self._record(kind, size, time.monotonic() - started)

    def record_busy(self, share: float) -> None:
        """Record the share of a step's time in which this rank waited for no other."""
        self._busy_shares.append(share)

    @property
    def busy_share(self) -> float | None:
        """Median of the recorded shares, None until there are WINDOW of them."""
        shares = list(self._busy_shares)
        return statistics.median(shares) if len(shares) == WINDOW else None

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Part of the present phase that waits for files: unmeasured once it lasts SHORT_WAIT."""
        self._wait = Phase(name, self._limits.stall), time.monotonic()
        try:
            yield
        finally:
            lasted = self.phase is not self._phase
            self._wait = None
            if lasted:
                self.limit_shortened.set()
