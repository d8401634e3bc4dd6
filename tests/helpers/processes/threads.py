"""Threads that play the ranks of a node."""

import threading
from collections.abc import Callable

from tests.helpers.processes.load import scaled


def run_in_threads(function: Callable[[], object], count: int, timeout: float) -> None:
    """Call a function in several threads at once, and wait for all of them.

    Args:
        function: Function that each thread calls.
        count: Number of threads.
        timeout: Seconds on an idle machine to wait for a thread.
    """
    threads = [threading.Thread(target=function) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=scaled(timeout))
