"""Signal handlers for the duration of a block."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# From a user, a scheduler that wants the machine back, and a terminal that was closed.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@contextmanager
def handled(
    handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals, ends_process: bool = False
) -> Iterator[None]:
    """Call `handler` for these signals inside the block, but not for SIGHUP in a process that nohup has made ignore it.

    Args:
        handler: Called with the number of the signal and the frame.
        numbers: Signals to handle.
        ends_process: Whether the process ends after the block. Its exit status is decided by then, so it ignores the signals
            that launchers and process groups repeat.
    """
    taken = [number for number in numbers if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in taken}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            next_handler = handler_before
            if ends_process:
                next_handler = signal.SIG_IGN
            signal.signal(number, next_handler)
