"""Waiting for another process or thread to do something, or to end."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.processes.load import Deadline


def no_details() -> str:
    """Add nothing to the message when a timeout expires."""
    return ""


def wait_until(
    condition: Callable[[], object],
    description: str,
    timeout: float,
    *,
    process: "subprocess.Popen[Any] | None" = None,
    details: Callable[[], str] = no_details,
    interval: float = 0.02,
) -> None:
    """Wait until a condition holds.

    Args:
        condition: Returns whether to stop waiting.
        description: Condition in words, a noun phrase for the message: "the first checkpoint".
        timeout: Seconds on an idle machine. A loaded one gets more (tests/helpers/processes/load.py).
        process: Process that has to make the condition true: waiting fails as soon as the process exits.
        details: Returns text to append to the message, for example a log.
        interval: Seconds between two checks.

    Raises:
        AssertionError: The timeout expired or the process exited before the condition held.
    """
    deadline = Deadline(timeout)
    while True:
        status = None
        if process is not None:
            status = process.poll()  # before the condition: the process may make it true and exit between the two
        if condition():
            return
        if status is not None:
            raise AssertionError(f"{description}: the process exited before, with status {status}\n{details()}")
        if deadline.is_over():
            raise AssertionError(f"{description}: not within {timeout:g} s of an idle machine\n{details()}")
        time.sleep(interval)


def has_ended(pid: int) -> bool:
    """Whether a process has ended. A zombie has ended, although its parent has not noticed."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    state = stat.rpartition(")")[2].split()[0]
    return state in "ZX"
