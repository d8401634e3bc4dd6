"""Test timeouts scaling with the machine's load.

A timeout is the time after which a process hangs on an idle machine. With more runnable processes than cores, each of them gets
a share of a core, so a healthy process takes longer.
"""

import os
import time

MAX_FACTOR = 10.0  # beyond it, even a loaded machine is no reason to wait


def load_factor() -> float:
    """Return how many runnable processes each core has at present, at least 1 and at most MAX_FACTOR."""
    num_cores = len(os.sched_getaffinity(0))
    return min(max(os.getloadavg()[0] / num_cores, 1.0), MAX_FACTOR)


def scaled(seconds: float) -> float:
    """Scale the timeout for an idle machine to the present load."""
    return seconds * load_factor()


class Deadline:
    """Time limit running slower while the machine is loaded.

    Args:
        seconds: Timeout on an idle machine.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._now = time.monotonic()

    def is_over(self) -> bool:
        """Whether the time is up, weighting the time since the last call by the present load."""
        before = self._now
        self._now = time.monotonic()
        self._left -= (self._now - before) / load_factor()
        return self._left < 0
