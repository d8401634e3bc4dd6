"""Rank heartbeats for testing the watch."""

from megatape.reliability.watch.heartbeat import Heartbeat, ThreadProgress

STEP = 60.0
IDLE = ThreadProgress()


def beat(
    num_collectives: int,
    timeout: float = STEP,
    phase: str = "step 7",
    background: ThreadProgress = IDLE,
    number: int = 0,
    busy_share: float | None = None,
) -> Heartbeat:
    """Return a rank's heartbeat after beginning this number of collectives."""
    main = ThreadProgress(phase, timeout, num_collectives)
    return Heartbeat(main, background, "host n1, process 8", number, busy_share)
