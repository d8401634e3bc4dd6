"""How long a rank may take for what it does, from how long it took for the like before; and which ranks are slow."""

import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

FACTOR = 10.0  # times the median
MEASURED = 2  # until as many were measured, nothing is known: the first step allocates and compiles, alone on a rank perhaps
WINDOW = 64  # the last ones, since a run may become slower
SLOW = 0.2  # of a step's time: what a rank may be busy longer than others before that is worth a warning
SHORT = 1.0  # seconds after which a wait for files is a phase: a rank that freezes in a shorter one is not given its limit


@dataclass(frozen=True)
class Phase:
    """name: such as "step 7". limit: seconds for which other ranks may wait for this one while it is in the phase."""

    name: str
    limit: float


class Pace:
    """What a rank does at present, as its main thread tells it; other threads read `now`.

    floors: least limit of each kind of phase, in seconds. unknown: the limit where nothing was measured. shorter: set when the
    limit has become shorter, of which other ranks must hear at once: one that freezes before has the limit that they know."""

    def __init__(self, floors: Mapping[str, float], unknown: float) -> None:
        self._phase = Phase("starting", unknown)
        self.shorter = threading.Event()
        self._wait: tuple[Phase, float] | None = None  # for files, and since when
        self._floors, self._unknown = floors, unknown
        self.remarks: deque[str] = deque()  # on slow ranks, for the main thread to report
        self._busy: deque[float] = deque(maxlen=WINDOW)
        self._taken: dict[tuple[str, int], deque[float]] = {}  # seconds, by kind and size
        self._entered: tuple[tuple[str, int], float] | None = None

    @property
    def now(self) -> Phase:
        """The present phase."""
        wait = self._wait  # once: the main thread may end it
        return wait[0] if wait and time.monotonic() - wait[1] > SHORT else self._phase

    def enter(self, kind: str, name: str, size: int = 0) -> None:
        """Leave the present phase and begin another. kind: one of the floors. size: what is of another size, and may compile
        anew, is measured apart."""
        now = time.monotonic()
        if self._entered:
            like, since = self._entered
            self._taken.setdefault(like, deque(maxlen=WINDOW)).append(now - since)
        self._entered = (kind, size), now
        taken = self._taken.get((kind, size), ())
        known, before = len(taken) >= MEASURED, self._phase.limit
        self._phase = Phase(name, max(self._floors[kind], FACTOR * statistics.median(taken)) if known else self._unknown)
        if self._phase.limit < before:
            self.shorter.set()

    def worked(self, share: float) -> None:
        """For this share of a step this rank was busy and waited for no other."""
        self._busy.append(share)

    @property
    def busy(self) -> float | None:
        """The median of these shares, once there are enough."""
        shares = list(self._busy)
        return statistics.median(shares) if len(shares) == WINDOW else None

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """A part of the present phase in which this rank waits for files, which may take long once and again."""
        self._wait = Phase(name, self._unknown), time.monotonic()
        try:
            yield
        finally:
            lasted, self._wait = self.now is not self._phase, None
            if lasted:
                self.shorter.set()


def slow_ranks(busy: Mapping[int, float]) -> dict[int, float]:
    """Ranks that keep the others waiting in most steps: which are busy for more of a step than the others by SLOW, with the
    median of the others.

    busy: of each rank."""
    others = {rank: statistics.median(busy[other] for other in busy if other != rank) for rank in busy if len(busy) > 1}
    return {rank: usual for rank, usual in others.items() if busy[rank] - usual > SLOW}


def unlimited() -> Pace:
    """For a run that nobody watches."""
    return Pace({"step": 0.0, "evaluation": 0.0, "save": 0.0}, 0.0)
