"""Watching the heartbeat of a file's holder without trusting any other clock."""

import math
import time


class HeartbeatMonitor:
    """Measures the time since a holder's last heartbeat by the clock of this process.

    Clocks of hosts and file servers may be wrong. So the time of a heartbeat shows only whether it
    is a new one.

    Args:
        max_gap: Maximum seconds that count between two looks. While a file server is away neither
            this process can look nor the holder send a heartbeat.

    Attributes:
        silent: Seconds without a new heartbeat, 0 at the first look.
        num_looks: Number of looks so far.
    """

    def __init__(self, max_gap: float = math.inf) -> None:
        self.max_gap = max_gap
        self.silent = 0.0
        self.num_looks = 0
        self._seen: tuple[bytes, float] | None = None
        self._looked = 0.0

    def look(self, content: bytes, beat: float) -> bool:
        """Record content and heartbeat of a file. Returns whether they have changed."""
        now = time.monotonic()
        before = self._seen
        changed = before not in (None, (content, beat))
        if before is None or changed:
            self.silent = 0.0
        else:
            self.silent += min(now - self._looked, self.max_gap)
        self._seen = (content, beat)
        self._looked = now
        self.num_looks += 1
        return changed
