"""Heartbeat of a rank: process, and progress of its threads."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.utils.values.validation import as_type

# group_desc of process groups used by the background thread, at its own pace.
BACKGROUND_GROUP = "background"


class RankThread(Enum):
    """Threads of a rank that start collectives. The background thread has its own process groups (BACKGROUND_GROUP)."""

    MAIN = "main"
    BACKGROUND = "background"


class ThreadProgress(NamedTuple):
    """Progress of a thread.

    Attributes:
        phase: Name of the current phase, such as "step 7". Empty if idle.
        timeout: Seconds that other ranks may wait for it in this phase.
        num_collectives: Collectives started so far.
    """

    phase: str = ""
    timeout: float = 0.0
    num_collectives: int = 0


class Heartbeat(NamedTuple):
    """State reported by a rank.

    Attributes:
        main: Progress of the main thread.
        background: Progress of the background thread.
        process: Host and process id.
        number: Heartbeats so far, so that each one differs from the last.
        busy_share: Share of a step in which it waits for no other rank, None until measured.
    """

    main: ThreadProgress
    background: ThreadProgress = ThreadProgress()
    process: str = "which never started"
    number: int = 0
    busy_share: float | None = None

    def progress(self, thread: RankThread) -> ThreadProgress:
        """Return the progress of one of the rank's threads."""
        if thread is RankThread.BACKGROUND:
            return self.background
        return self.main


def missing_heartbeat(timeouts: WatchTimeouts) -> Heartbeat:
    """Return the state of a rank that has sent no heartbeat yet."""
    return Heartbeat(ThreadProgress("starting", timeouts.stall))


def parse_heartbeat(values: Sequence[Any]) -> Heartbeat:
    """Parse a heartbeat sent as JSON values.

    Raises:
        UserError: The values are not a heartbeat.
    """
    return as_type(values, Heartbeat)
