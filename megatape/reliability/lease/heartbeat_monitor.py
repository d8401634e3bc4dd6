"""Monitoring a holder's heartbeats without trusting any other clock."""

import math
import time


class HeartbeatMonitor:
    """Measures the time since a holder's last heartbeat by the clock of this process.

    Clocks of hosts and file servers may be wrong, so a heartbeat's time only shows whether it is new.

    Args:
        max_gap: Maximum seconds that count between two checks. While a file server is away, this process cannot check, nor can
            the holder send a heartbeat.

    Attributes:
        silent: Seconds without a new heartbeat, 0 at the first check.
        num_checks: Checks so far.
    """

    def __init__(self, max_gap: float = math.inf) -> None:
        self.max_gap = max_gap
        self.silent = 0.0
        self.num_checks = 0
        self._seen: tuple[bytes, float] | None = None
        self._checked = 0.0

    def check(self, content: bytes, heartbeat: float) -> bool:
        """Record content and heartbeat of the lease's file. Returns whether they have changed."""
        now = time.monotonic()
        before = self._seen
        changed = before not in (None, (content, heartbeat))
        if before is None or changed:
            self.silent = 0.0
        else:
            self.silent += min(now - self._checked, self.max_gap)
        self._seen = (content, heartbeat)
        self._checked = now
        self.num_checks += 1
        return changed
