"""Policy for starting a run again that ended for a reason that may pass: a rank died, a device was lost, a disk was full.

`megatape supervise` asks `Restarts`. The batch script of a Slurm job runs where there may be no Python, so its constants and
cases are rendered from the same policy (job.sh.jinja).
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from megatape.errors import ExitStatus

# Exit status of a process that a signal killed, as shells number it, minus the signal's number.
KILLED_BY = 128

# Slurm sends SIGUSR1 before the time limit. It kills a rank that is still starting and has no handler yet.
KILLED_BY_USR1 = KILLED_BY + signal.SIGUSR1.value

# Exit statuses after which a Slurm job is requeued -> reason in its log. After other errors it is requeued if a node is lost.
REQUEUE_REASONS = {
    ExitStatus.UNFINISHED.value: "stopped before its end",
    KILLED_BY_USR1: "stopped before training began",
    ExitStatus.NOT_SAVED.value: "the last checkpoint was not saved",
}

# A job is not requeued after this many starts in a row without a new checkpoint.
MAX_IDLE_STARTS = 3


@dataclass(frozen=True)
class RestartPolicy:
    """Rules for starting a run again.

    A run that has died is started again only if it has completed a checkpoint since its start: a run that dies at the same step
    each time would die forever. A run that could not save its last checkpoint is started again without progress, a few times
    and after a pause, because other jobs may free space on the disk.

    Attributes:
        final: Exit statuses after which a run is not started again. All others except NOT_SAVED are deaths.
        max_unsaved_starts: Maximum number of restarts in a row after NOT_SAVED.
        pause: Seconds before a restart after NOT_SAVED.
    """

    final: tuple[int, ...] = (
        ExitStatus.DONE.value,
        ExitStatus.USER_ERROR.value,
        ExitStatus.DIVERGED.value,
        ExitStatus.UNFINISHED.value,
        ExitStatus.INTERRUPTED.value,
    )
    max_unsaved_starts: int = 3
    pause: int = 60


SUPERVISOR_POLICY = RestartPolicy()
JOB_POLICY = RestartPolicy(final=(*SUPERVISOR_POLICY.final, KILLED_BY_USR1))


class Action(Enum):
    """Reaction to the end of a start."""

    # The status is final, or no restarts are left.
    END = auto()
    # No checkpoint was completed since the start.
    GIVE_UP = auto()
    RESTART = auto()


@dataclass(frozen=True)
class Decision:
    """Decision after the end of a start.

    Attributes:
        status: Exit status to report. It can differ from that of the command.
        action: What to do next.
        pause: Seconds to wait before a restart.
    """

    status: int
    action: Action
    pause: int = 0


class Restarts:
    """The starts of one run, and the decisions between them.

    Args:
        policy: Rules for starting the run again.
        max_restarts: Maximum number of restarts.
    """

    def __init__(self, policy: RestartPolicy, max_restarts: int) -> None:
        self.left = max_restarts
        self._policy = policy
        # Number of starts in a row that ended with NOT_SAVED.
        self._num_unsaved = 0

    def decide(self, status: int, has_advanced: Callable[[], bool]) -> Decision:
        """Decide whether to start the run again.

        Args:
            status: Exit status of the start that has ended.
            has_advanced: Returns whether a checkpoint was completed since that start. Only called if it matters.
        """
        if self._num_unsaved and status == ExitStatus.USER_ERROR:
            # A disk that is still full also fails the next start.
            status = ExitStatus.NOT_SAVED.value
        if status in self._policy.final or not self.left:
            return Decision(status, Action.END)

        if status == ExitStatus.NOT_SAVED:
            self._num_unsaved += 1
        else:
            self._num_unsaved = 0
        may_free_space = 0 < self._num_unsaved <= self._policy.max_unsaved_starts
        if not (may_free_space or has_advanced()):
            return Decision(status, Action.GIVE_UP)

        self.left -= 1
        pause = 0
        if self._num_unsaved:
            pause = self._policy.pause
        return Decision(status, Action.RESTART, pause)
