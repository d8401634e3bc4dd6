"""Stops a run on request: after a signal, the step in progress is finished and a checkpoint is written."""

import signal
from types import FrameType


class Interrupt:
    """Handler that remembers a signal.

    Launchers often answer one Ctrl-C with SIGINT and SIGTERM to every rank. Both mean the same single request. A second SIGINT
    ends the process at once.

    Attributes:
        requested: Whether a signal asked to stop.
        by_user: Whether it was SIGINT, from a user rather than a scheduler.
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
