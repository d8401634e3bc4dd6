"""Running ranks on this machine, and how they end."""

import logging
import signal
import time
from collections.abc import Callable, Sequence

from megatape.errors import ExitStatus
from megatape.tools.cluster.supervise.ended_command import EndedCommand
from megatape.tools.cluster.supervise.rank_process import RankProcess
from megatape.utils.processes.python_process import shell_status

LOG = logging.getLogger(__name__)

# Seconds between two checks of the ranks.
POLL_INTERVAL = 0.05
# Seconds in which the other ranks may record an error and end by themselves.
LEAD_AFTER_ERROR = 2.0
# Seconds in which the main rank may record that another rank was killed.
LEAD_AFTER_KILL = 0.5
# Seconds from SIGTERM to SIGKILL, as long as DeepSpeed's launcher waits.
GRACE = 30.0
# A rank that ends with one of these statuses has not failed: the other ranks end as well.
PLANNED_ENDS = (ExitStatus.DONE, ExitStatus.UNFINISHED)


class LocalRanks:
    """Running ranks.

    Args:
        processes: Processes by rank.
        while_running: Called several times a second while all ranks are running.
        lead: Seconds from an error to a signal.
        grace: Seconds from SIGTERM to SIGKILL.
    """

    def __init__(
        self,
        processes: Sequence[RankProcess],
        while_running: Callable[[], object] = lambda: None,
        lead: float = LEAD_AFTER_ERROR,
        grace: float = GRACE,
    ) -> None:
        self._processes = processes
        self._while_running = while_running
        self._lead = lead
        self._grace = grace

    def send(self, number: int) -> None:
        """Send a signal to the running ranks."""
        for process in self._processes:
            process.send(number)

    def wait(self) -> EndedCommand:
        """Wait until all ranks have ended, and end the others if one has failed.

        Returns:
            The exit status of the first rank that failed, else the highest one, and the failure.
        """
        failed = self._wait_for_failure()
        if failed is None:
            statuses = [process.status() or ExitStatus.DONE for process in self._processes]
            return EndedCommand(max(statuses))
        status = self._processes[failed].status()
        assert status is not None
        is_killed = status < 0
        lead = self._lead
        if is_killed:
            lead = min(lead, LEAD_AFTER_KILL)
        if not self._wait_for_end(lead):
            self._end_others(failed, is_killed)
        return EndedCommand(shell_status(status), cause=self._describe(failed, status))

    def _wait_for_failure(self) -> int | None:
        """Return the first rank that fails, None if all have ended as planned."""
        while True:
            is_running = self._is_running()
            for rank, process in enumerate(self._processes):
                status = process.status()
                if status is not None and status not in PLANNED_ENDS:
                    return rank
            if not is_running:
                return None
            self._while_running()
            time.sleep(POLL_INTERVAL)

    def _end_others(self, failed: int, is_killed: bool) -> None:
        """End the ranks that are still running after a failure."""
        if is_killed:
            # Alone, the ranks would have to wait for missing heartbeats to learn which of them is dead.
            status = self._processes[failed].status()
            LOG.warning("%s: the other ranks are killed", self._describe(failed, status or 0))
        else:
            self.send(signal.SIGTERM)
            if self._wait_for_end(self._grace):
                return
        self.send(signal.SIGKILL)
        while self._is_running():
            time.sleep(POLL_INTERVAL)

    def _describe(self, rank: int, status: int) -> str:
        """Return a clause about the end of a rank."""
        name = f"rank {rank} (process {self._processes[rank].pid})"
        if status < 0:
            return f"{name} was ended by {signal.Signals(-status).name}"
        return f"{name} ended with status {status}"

    def _wait_for_end(self, timeout: float) -> bool:
        """Wait until all ranks have ended, or the time is over. Returns whether they have ended."""
        deadline = time.monotonic() + timeout
        while self._is_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_INTERVAL)
        return True

    def _is_running(self) -> bool:
        statuses = [process.status() for process in self._processes]
        return None in statuses
