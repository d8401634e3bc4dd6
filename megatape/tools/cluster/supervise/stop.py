"""Request to stop a supervised run, and the resulting exit status."""

import signal
from types import FrameType

from megatape.errors import ExitStatus
from megatape.tools.cluster.restarts import RestartPolicy
from megatape.tools.cluster.supervise.ended_command import EndedCommand, RunningCommand
from megatape.tools.cluster.supervise.run_progress import RecordedEvent


class StopRequest:
    """Handles signals to stop, and passes them on to the running command.

    Attributes:
        is_received: Whether a signal has arrived.
        is_by_user: Whether one of the signals was Ctrl-C.
    """

    def __init__(self) -> None:
        self.is_received = False
        self.is_by_user = False
        self._command: RunningCommand | None = None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal, as signal.signal calls it."""
        self.is_received = True
        if number == signal.SIGINT:
            # The terminal has sent it to the command as well.
            self.is_by_user = True
        elif self._command is not None:
            self._command.send(number)

    def pass_on_to(self, command: RunningCommand) -> None:
        """Pass signals on to a newly started command, including one that arrived earlier."""
        self._command = command
        if self.is_received:
            command.send(signal.SIGTERM)


def status_of_stop(ended: EndedCommand, last_event: RecordedEvent | None, by_user: bool, policy: RestartPolicy) -> int:
    """Return the exit status of a run after a request to stop.

    Often the signal also ends the launcher, or makes it report status 1, while its ranks are still writing their checkpoint. In
    this case, the last event recorded by the ranks decides:

    status of the command                    last event            by_user  result
    final in `policy` or NOT_SAVED           any                   any      the status
    other                                    none                  any      the status
    other                                    finished              any      DONE
    other                                    stopped               no       UNFINISHED
    other                                    stopped after a step  yes      DONE
    other                                    stopped before        yes      INTERRUPTED
    other                                    another kind          any      the status

    UNFINISHED of an orphan replaces the status of the command. INTERRUPTED counts as other, because launchers report it, too.

    Args:
        ended: Exit statuses of the command and its orphans.
        last_event: Last event that the run recorded since the command started.
        by_user: Whether the user pressed Ctrl-C.
        policy: Rules for restarting the run.
    """
    status = ended.status
    if ExitStatus.UNFINISHED in ended.orphan_statuses:
        status = ExitStatus.UNFINISHED
    comes_from_ranks = status in policy.final and status != ExitStatus.INTERRUPTED
    if comes_from_ranks or status == ExitStatus.NOT_SAVED or last_event is None:
        return status
    if last_event.kind == "finished":
        return ExitStatus.DONE
    if last_event.kind != "stopped":
        return status
    if not by_user:
        return ExitStatus.UNFINISHED
    if last_event.step:
        return ExitStatus.DONE
    return ExitStatus.INTERRUPTED
