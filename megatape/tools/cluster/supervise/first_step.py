"""Notices the first step of a start."""

import threading
from pathlib import Path

POLL_INTERVAL = 1.0


class FirstStep:
    """Watches metrics.jsonl in a thread, because a file server may not answer for minutes.

    Args:
        metrics: File that grows with each step. The first step of a resumed run replaces it.
        poll_interval: Seconds between two checks of it.
    """

    def __init__(self, metrics: Path, poll_interval: float = POLL_INTERVAL) -> None:
        self._metrics = metrics
        self._poll_interval = poll_interval
        self._before = self._state()
        self._is_made = threading.Event()
        self._is_over = threading.Event()
        threading.Thread(target=self._watch, name="first step", daemon=True).start()

    @property
    def is_made(self) -> bool:
        """Whether the start has made a step."""
        return self._is_made.is_set()

    def stop(self) -> None:
        """End the thread."""
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.wait(self._poll_interval):
            if self._state() not in (self._before, None):
                self._is_made.set()
                return

    def _state(self) -> tuple[int, int] | None:
        """Return number and size of the file, None if it is missing or empty."""
        try:
            status = self._metrics.stat()
        except OSError:
            return None
        if not status.st_size:
            return None
        return status.st_ino, status.st_size
