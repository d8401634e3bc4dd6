"""Ending a run on request: a signal lets the step in progress finish, and a checkpoint is written."""

import signal
from types import FrameType
from typing import Any, Self


class Interrupt:
    """Remembers that a signal came.

    SIGINT from a user, SIGTERM or SIGUSR1 from a scheduler that wants the machine back, SIGHUP from a terminal that was closed,
    unless the process was started to ignore that (nohup).

    Context manager: outside it, the signals do what they did before.

    Launchers often answer one Ctrl-C with SIGINT and SIGTERM to every rank; both mean the same one request. A second SIGINT
    ends the process at once.
    """

    def __init__(self) -> None:
        self.requested = False
        self.by_user = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._previous = {number: signal.signal(number, self._request) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if number == signal.SIGINT:
            self.by_user = True
            signal.signal(signal.SIGINT, signal.default_int_handler)
