"""Waits for other processes."""

import time
from collections.abc import Callable


def wait_until(is_met: Callable[[], bool], timeout: float, interval: float) -> bool:
    """Call a function until it returns True. Return False after the timeout.

    Args:
        is_met: Function to call.
        timeout: Seconds after which to stop.
        interval: Seconds between calls.
    """
    deadline = time.monotonic() + timeout
    while not is_met():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True
