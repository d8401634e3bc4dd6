"""What a signal does while a block runs."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# From a user, a scheduler that wants the machine back, and a terminal that was closed.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    """Let `handler` take these signals inside the block, but not SIGHUP in a process that nohup has made ignore it."""
    taken = [number for number in numbers if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in taken}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
