"""Heartbeat of a rank: its process, and the progress of its threads."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.utils.validation import as_type

# group_desc of process groups whose collectives the background thread begins, at its own pace.
BACKGROUND_GROUP = "background"


class RankThread(Enum):
    """Threads of a rank that begin collectives. The background thread does so in groups of its own (BACKGROUND_GROUP)."""

    MAIN = "main"
    BACKGROUND = "background"


class ThreadProgress(NamedTuple):
    """Progress of a thread.

    Attributes:
        phase: Name of its present work, such as "step 7". Empty if it has none.
        timeout: Seconds that other ranks may wait for it in this phase.
        num_collectives: Number of collectives that it has begun.
    """

    phase: str = ""
    timeout: float = 0.0
    num_collectives: int = 0


class Heartbeat(NamedTuple):
    """State of a rank, as the rank reports it.

    Attributes:
        main: Progress of its main thread.
        background: Progress of its background thread.
        process: Host and process id.
        number: Number of heartbeats so far, so that each differs from the last one.
        busy_share: Share of a step in which it waits for no other rank, None while unmeasured.
    """

    main: ThreadProgress
    background: ThreadProgress = ThreadProgress()
    process: str = "which never started"
    number: int = 0
    busy_share: float | None = None

    def progress(self, thread: RankThread) -> ThreadProgress:
        """Return the progress of one of the threads."""
        if thread is RankThread.BACKGROUND:
            return self.background
        return self.main


def missing_heartbeat(timeouts: WatchTimeouts) -> Heartbeat:
    """Return the state of a rank that has sent no heartbeat yet."""
    return Heartbeat(ThreadProgress("starting", timeouts.stall))


def parse_heartbeat(values: Sequence[Any]) -> Heartbeat:
    """Return the heartbeat whose values were sent as JSON.

    Raises:
        UserError: They are not those of a heartbeat.
    """
    return as_type(values, Heartbeat)
