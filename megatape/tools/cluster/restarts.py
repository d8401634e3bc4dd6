"""Policy for restarting a run after a failure that may pass: a rank died, a device was lost, a disk was full.

`megatape supervise` uses `Restarts`. A Slurm job decides in its batch script, because the host that runs the script may lack
Python. The constants and cases of the script are rendered from the same policy (job.sh.jinja).
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from megatape.errors import ExitStatus
from megatape.utils.processes.python_process import KILLED_BY

# Slurm sends SIGUSR1 before the time limit. The signal kills a rank that is still starting and has no handler yet.
KILLED_BY_USR1 = KILLED_BY + signal.SIGUSR1.value

# Exit status after which a Slurm job is requeued -> reason in its log. After other errors, it is requeued if a node is lost.
REQUEUE_REASONS = {
    ExitStatus.UNFINISHED.value: "stopped before its end",
    KILLED_BY_USR1: "stopped before training began",
    ExitStatus.NOT_SAVED.value: "the last checkpoint was not saved",
}

# A run is not started again, and a job not requeued, after this many starts in a row without a new checkpoint.
MAX_IDLE_STARTS = 3


@dataclass(frozen=True)
class RestartPolicy:
    """Rules for restarting a run.

    A run that died is restarted a few times in a row even if it has not completed a checkpoint: machines fail while a run is
    starting as well. A run that always dies at the same step must not be restarted forever. A run that could not save its last
    checkpoint is restarted after a pause, in which other jobs may free space on the disk.

    Attributes:
        final: Exit statuses after which a run is not restarted. All others except NOT_SAVED mean that the run died.
        max_idle_starts: Maximum number of consecutive starts that die without completing a checkpoint.
        max_unsaved_starts: Maximum number of consecutive restarts after NOT_SAVED.
        pause: Seconds before restarting after NOT_SAVED.
    """

    final: tuple[int, ...] = (
        ExitStatus.DONE.value,
        ExitStatus.USER_ERROR.value,
        ExitStatus.DIVERGED.value,
        ExitStatus.UNFINISHED.value,
        ExitStatus.INTERRUPTED.value,
    )
    max_idle_starts: int = MAX_IDLE_STARTS
    max_unsaved_starts: int = 3
    pause: int = 60


SUPERVISOR_POLICY = RestartPolicy()
JOB_POLICY = RestartPolicy(final=(*SUPERVISOR_POLICY.final, KILLED_BY_USR1))


class Action(Enum):
    """Action to take after a run has ended."""

    # The status is final, or no restarts are left.
    END = auto()
    # Several starts in a row have not completed a checkpoint.
    GIVE_UP = auto()
    RESTART = auto()


@dataclass(frozen=True)
class Decision:
    """Decision after a run has ended.

    Attributes:
        status: Exit status to report. It can differ from the command's.
        action: Next action.
        pause: Seconds to wait before restarting.
    """

    status: int
    action: Action
    pause: int = 0


class Restarts:
    """Decides after each start of a run whether to restart it.

    Args:
        policy: Rules for restarting.
        max_restarts: Maximum number of restarts.

    Attributes:
        num_left: Number of restarts left.
        num_idle: Number of consecutive starts that have died without completing a checkpoint.
    """

    def __init__(self, policy: RestartPolicy, max_restarts: int) -> None:
        self.num_left = max_restarts
        self.num_idle = 0
        self._policy = policy
        # Number of consecutive starts that ended with NOT_SAVED.
        self._num_unsaved = 0

    def decide(self, status: int, has_advanced: Callable[[], bool]) -> Decision:
        """Decide whether to restart the run.

        Args:
            status: Exit status of the last start.
            has_advanced: Function that returns whether the last start completed a checkpoint. Only called if it matters.
        """
        if self._num_unsaved and status == ExitStatus.USER_ERROR:
            # If the disk is still full, the next start fails with USER_ERROR.
            status = ExitStatus.NOT_SAVED.value
        if status in self._policy.final or not self.num_left:
            return Decision(status, Action.END)

        if status == ExitStatus.NOT_SAVED:
            self._num_unsaved += 1
            if self._num_unsaved > self._policy.max_unsaved_starts and not has_advanced():
                return Decision(status, Action.GIVE_UP)
        else:
            self._num_unsaved = 0
            self._count_idle(has_advanced())
            if self.num_idle >= self._policy.max_idle_starts:
                return Decision(status, Action.GIVE_UP)

        self.num_left -= 1
        pause = 0
        if self._num_unsaved:
            pause = self._policy.pause
        return Decision(status, Action.RESTART, pause)

    def _count_idle(self, has_advanced: bool) -> None:
        if has_advanced:
            self.num_idle = 0
        else:
            self.num_idle += 1
