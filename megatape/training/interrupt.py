"""Ending a run on request: Ctrl-C or a scheduler's SIGTERM finish the step in progress, and a checkpoint is written."""

import signal
from types import FrameType


class Interrupt:
    """Remembers that SIGINT or SIGTERM came. Launchers often send both, to every rank: all mean the same one request."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
