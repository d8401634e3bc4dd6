"""Waits for something that another process does."""

import time
from collections.abc import Callable


def wait_until(is_met: Callable[[], bool], timeout: float, interval: float) -> bool:
    """Call a function until it returns True.

    Args:
        is_met: The function.
        timeout: Seconds after which no further call begins.
        interval: Seconds between calls.

    Returns:
        Whether it returned True.
    """
    deadline = time.monotonic() + timeout
    while not is_met():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True
