"""Ends a rank's process after a verdict, even if its main thread is stuck."""

import os
import threading
from pathlib import Path
from typing import Never

from megatape.errors import ExitStatus
from megatape.reliability.watch.heartbeat import RankThread
from megatape.reliability.watch.pace import Pace
from megatape.reliability.watch.stacks import append_stacks, format_stacks
from megatape.reliability.watch.verdict import Verdict
from megatape.utils.text.terminal import print_at_once

# Thread name of the watch.
THREAD_NAME = "watch"


class ProcessEnd:
    """Records the stacks of this rank's threads, and ends its process.

    Args:
        rank: This rank.
        process: Host and process id.
        pace: This rank's pace, which knows its phase.
        stacks: File to append the stacks to, or None.
        grace: Maximum seconds to wait for the file.
    """

    def __init__(self, rank: int, process: str, pace: Pace, stacks: Path | None, grace: float) -> None:
        self._rank = rank
        self._process = process
        self._pace = pace
        self._stacks = stacks
        self._grace = grace

    def append_stacks(self, verdict: Verdict) -> None:
        """Append the verdict and all threads' stacks to this rank's file."""
        if self._stacks is not None:
            origin = f"rank {self._rank}, {self._process}, in {self._pace.phase.name}"
            append_stacks(self._stacks, f"{origin}: {verdict.message}", timeout=self._grace)

    def end(self, verdict: Verdict) -> Never:
        """End the process, after printing the verdict and, if this rank hangs, where."""
        try:
            if verdict.status == ExitStatus.DIED:
                print_at_once(self._describe(verdict))
        finally:
            os._exit(verdict.status)

    def _describe(self, verdict: Verdict) -> str:
        """Return the verdict and, if this rank hangs, the stacks of the threads that may hang."""
        lines = f"error on rank {self._rank}: {verdict.message}\n"
        if verdict.accuses(self._rank):
            lines += "stack of the hanging threads:\n" + format_stacks(_threads_at_fault(verdict.thread))
        return lines


def _threads_at_fault(thread: RankThread) -> list[threading.Thread]:
    """Return the threads that may hang: the main thread, or for the background thread all except the watch's."""
    if thread is RankThread.BACKGROUND:
        return [running for running in threading.enumerate() if running.name != THREAD_NAME]
    return [threading.main_thread()]
