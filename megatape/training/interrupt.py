"""Ending a run on request: a signal lets the step in progress finish, and a checkpoint is written."""

import signal
from types import FrameType


class Interrupt:
    """Remembers that a signal came.

    Launchers often answer one Ctrl-C with SIGINT and SIGTERM to every rank; both mean the same one request. A second SIGINT
    ends the process at once.
    """

    def __init__(self) -> None:
        self.requested = False
        self.by_user = False

    def request(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal (reliability/signals.py)."""
        self.requested = True
        if number == signal.SIGINT:
            self.by_user = True
            signal.signal(signal.SIGINT, signal.default_int_handler)
