"""Detects that the store does not answer, because rank 0's process is frozen or cut off."""

import threading

from megatape.reliability.watch.heartbeat_sender import HeartbeatSender
from megatape.reliability.watch.pace import Pace
from megatape.reliability.watch.process_end import ProcessEnd
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.reliability.watch.verdict import FaultKind, Verdict


class StoreGuard:
    """Ends the process when sending heartbeats is stuck. It calls nothing that could block.

    Args:
        sender: Sends this rank's heartbeats, in another thread.
        pace: This rank's pace, which knows its phase.
        timeouts: Watch timeouts.
        process_end: Ends the process.
    """

    def __init__(self, sender: HeartbeatSender, pace: Pace, timeouts: WatchTimeouts, process_end: ProcessEnd) -> None:
        self._sender = sender
        self._pace = pace
        self._timeouts = timeouts
        self._process_end = process_end

    def run(self, finished: threading.Event, decided: threading.Event) -> None:
        """Guard the store, in its own thread.

        Args:
            finished: Set when this rank leaves the watch.
            decided: Set when the other thread has a verdict.
        """
        last_count = self._sender.num_started
        stuck_seconds = 0.0
        while not finished.wait(self._timeouts.period) and not decided.is_set():
            count = self._sender.num_started
            if count == last_count:
                stuck_seconds += self._timeouts.period
            else:
                stuck_seconds = 0.0
            last_count = count
            if stuck_seconds > min(self._timeouts.silence, self._pace.phase.timeout):
                cause = (
                    f"rank 0 is frozen or cut off: its store has not answered for {stuck_seconds:.0f} s; the run ends here, "
                    "end rank 0's process and continue with --resume auto"
                )
                verdict = Verdict(FaultKind.STORE, cause)
                self._process_end.append_stacks(verdict)
                self._process_end.end(verdict)
