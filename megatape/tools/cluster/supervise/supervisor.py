"""Starts a run again after failures, for `megatape supervise`."""

import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

from megatape.checkpoint.manifest import MANIFEST, load_manifest
from megatape.errors import ExitStatus, UserError
from megatape.reliability.signals import STOPPING, handled
from megatape.run_folder import RunFolder
from megatape.tools.cluster.restarts import SUPERVISOR_POLICY, Action, RestartPolicy, Restarts
from megatape.tools.cluster.supervise.supervised_command import SupervisedCommand
from megatape.utils.json_lines import read_lines
from megatape.utils.retries import retry_transient_errors
from megatape.utils.waiting import wait_until

LOG = logging.getLogger(__name__)


class _StopRequest:
    """A signal to stop, which is passed on to the running command.

    Attributes:
        is_received: Whether a signal has arrived.
        is_by_user: Whether one of the signals was Ctrl-C.
    """

    def __init__(self) -> None:
        self.is_received = False
        self.is_by_user = False
        self._command: SupervisedCommand | None = None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.is_received = True
        if number == signal.SIGINT:
            # The terminal has sent it to the command as well.
            self.is_by_user = True
        elif self._command is not None:
            self._command.send(number)

    def pass_on_to(self, command: SupervisedCommand) -> None:
        """Pass signals on to a command that has just been started, including one that arrived before."""
        self._command = command
        if self.is_received:
            command.send(signal.SIGTERM)


def supervise(
    words: Sequence[str],
    folder: RunFolder,
    restarts: int,
    ends_process: bool = False,
    policy: RestartPolicy = SUPERVISOR_POLICY,
) -> int:
    """Run a command that trains in `folder` and resumes, and start it again up to `restarts` times.

    A signal is passed on to the command, and ends the supervision, too.

    Args:
        words: The command.
        folder: Folder of the run.
        restarts: Maximum number of restarts.
        ends_process: Whether this process ends afterwards. It then ignores further signals.
        policy: Rules for starting the run again.

    Returns:
        The exit status of the last start.

    Raises:
        UserError: The command cannot be started.
        OSError: The folder cannot be read.
    """
    stop = _StopRequest()
    starts = Restarts(policy, restarts)
    with handled(stop.receive, *STOPPING, ends_process=ends_process):
        while True:
            checkpoints = completed(folder)
            num_events = len(_events(folder))
            command = SupervisedCommand(words)
            stop.pass_on_to(command)
            status, orphan_statuses = command.wait()

            if stop.is_received:
                if ExitStatus.UNFINISHED in orphan_statuses:
                    status = ExitStatus.UNFINISHED
                new_events = _events(folder)[num_events:]
                return _status_of_stop(status, new_events, stop.is_by_user, policy)
            if status in policy.final and any(orphan_statuses):
                status = ExitStatus.DIED  # the launcher died

            decision = starts.decide(status, partial(_has_advanced, folder, checkpoints))
            status = decision.status
            if decision.action is Action.END:
                return status
            if decision.action is Action.GIVE_UP:
                LOG.warning("supervise: status %d, and no checkpoint was completed since the start: not started again", status)
                return status
            after = ""
            if decision.pause:
                after = f" in {decision.pause} s"
            LOG.warning("supervise: status %d: started again%s, %d restarts left", status, after, starts.left)
            if wait_until(lambda: stop.is_received, decision.pause, interval=1.0):
                return status


def _status_of_stop(status: int, events: Sequence[dict[str, Any]], by_user: bool, policy: RestartPolicy) -> int:
    """Return the exit status of a run after a request to stop.

    The signal often ends the launcher as well, or makes it report 1, while its ranks write their checkpoint. In this case the
    events recorded by the ranks decide.

    Args:
        status: Exit status of the command.
        events: Events recorded by the run since the start of the command.
        by_user: Whether the user pressed Ctrl-C.
        policy: Rules for starting the run again.
    """
    comes_from_ranks = status in policy.final and status != ExitStatus.INTERRUPTED
    if comes_from_ranks or status == ExitStatus.NOT_SAVED or not events:
        return status
    last = events[-1]
    if last.get("event") == "finished":
        return ExitStatus.DONE
    if last.get("event") != "stopped":
        return status
    if not by_user:
        return ExitStatus.UNFINISHED
    if last.get("step"):
        return ExitStatus.DONE
    return ExitStatus.INTERRUPTED


def _events(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the events of the run, or an empty list if they cannot be read."""
    try:
        return [event for _, event in read_lines(folder.events)]
    except (OSError, UserError):
        return []


def _has_advanced(folder: RunFolder, checkpoints: set[tuple[str, int]]) -> bool:
    """Whether a checkpoint was completed since `completed` returned `checkpoints`."""
    return bool(completed(folder) - checkpoints)


def completed(folder: RunFolder) -> set[tuple[str, int]]:
    """Return the name and the time of completion of every checkpoint with a valid manifest.

    Steps alone would not show that a run advances: a run that resumes from an older checkpoint, because newer ones are
    corrupted or led to a spike, writes smaller steps.

    Raises:
        OSError: The folder cannot be read for some time.
    """

    def list_completed() -> set[tuple[str, int]]:
        found = set()
        for path in folder.list_checkpoints():
            # Skip checkpoints that are corrupted, stray or removed meanwhile.
            with suppress(ValueError, FileNotFoundError):
                load_manifest(path)
                completion_time = (path / MANIFEST).stat().st_mtime_ns
                found.add((path.name, completion_time))
        return found

    return retry_transient_errors(list_completed)
