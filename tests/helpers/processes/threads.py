"""Threads playing the ranks on a node."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.helpers.processes.load import scaled


def run_in_threads(function: Callable[[], object], count: int, timeout: float) -> None:
    """Call a function in several threads at once. The test fails if a call raises, or takes longer than the timeout.

    Args:
        function: Function called by each thread.
        count: Number of threads.
        timeout: Seconds on an idle machine to wait for a thread.

    Raises:
        TimeoutError: A call has not returned by then.
    """
    pool = ThreadPoolExecutor(count)
    try:
        calls = [pool.submit(function) for _ in range(count)]
        for call in calls:
            call.result(timeout=scaled(timeout))
    finally:
        # Waiting here would turn a hanging call into a hanging test.
        pool.shutdown(wait=False)
