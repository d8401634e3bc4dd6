"""Handling signals inside a block."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Sent by a user, by a scheduler that takes back the machine, and by a closed terminal.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@contextmanager
def handled(
    handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals, ends_process: bool = False
) -> Iterator[None]:
    """Call `handler` for these signals inside the block. A process started by nohup keeps ignoring SIGHUP.

    Args:
        handler: Called with signal number and frame.
        numbers: Signals to handle.
        ends_process: Whether the process ends after the block. Its exit status is decided by then, so it ignores signals
            repeated by launchers and process groups.
    """
    earlier_handlers: dict[signal.Signals, Any] = {}
    for number in numbers:
        is_ignored_by_nohup = number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN
        if not is_ignored_by_nohup:
            earlier_handlers[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier_handler in earlier_handlers.items():
            if ends_process:
                signal.signal(number, signal.SIG_IGN)
            else:
                signal.signal(number, earlier_handler)
