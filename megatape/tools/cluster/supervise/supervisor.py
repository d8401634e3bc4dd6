"""Restarts a run after failures, for `megatape supervise`."""

import logging
from collections.abc import Callable

from megatape.errors import ExitStatus
from megatape.reliability.signals import STOPPING, handled
from megatape.run_folder import RunFolder
from megatape.tools.cluster.restarts import SUPERVISOR_POLICY, Action, Decision, RestartPolicy, Restarts
from megatape.tools.cluster.supervise.ended_command import EndedCommand, RunningCommand
from megatape.tools.cluster.supervise.run_progress import RecordedEvent, RunProgress
from megatape.tools.cluster.supervise.stop import StopRequest, status_of_stop
from megatape.utils.processes.waiting import wait_until
from megatape.utils.text.units import plural

LOG = logging.getLogger(__name__)


def supervise(
    start: Callable[[], RunningCommand],
    folder: RunFolder,
    restarts: int,
    ends_process: bool = False,
    policy: RestartPolicy = SUPERVISOR_POLICY,
) -> int:
    """Run a command that trains and resumes a run, and restart it up to `restarts` times.

    A signal is passed on to the command, and also ends the supervision.

    Args:
        start: Starts the command.
        folder: Run directory.
        restarts: Maximum number of restarts.
        ends_process: Whether this process ends afterwards, so that further signals are ignored.
        policy: Rules for restarting.

    Returns:
        The exit status of the last start.

    Raises:
        UserError: The command cannot be started.
        OSError: The run directory cannot be read.
    """
    stop = StopRequest()
    restart_decisions = Restarts(policy, restarts)
    # Cause of the first of several ends in a row without a new checkpoint.
    first_cause = ""
    with handled(stop.receive, *STOPPING, ends_process=ends_process):
        while True:
            progress = RunProgress(folder)
            command = start()
            stop.pass_on_to(command)
            ended = command.wait()
            if stop.is_received:
                return status_of_stop(ended, progress.last_event(), stop.is_by_user, policy)

            decision = restart_decisions.decide(_status_of(ended, policy), progress.has_advanced)
            if restart_decisions.num_idle == 1:
                first_cause = _cause_of(ended, progress.last_event())
            _announce(decision, restart_decisions, first_cause)
            if decision.action is not Action.RESTART:
                return decision.status
            if wait_until(lambda: stop.is_received, decision.pause, interval=1.0):
                return decision.status


def _status_of(ended: EndedCommand, policy: RestartPolicy) -> int:
    """Return the exit status of a run that ended by itself: DIED if the launcher's is final, but some of its ranks failed."""
    is_launcher_dead = ended.status in policy.final and any(ended.orphan_statuses)
    if is_launcher_dead:
        return ExitStatus.DIED
    return ended.status


def _cause_of(ended: EndedCommand, last_event: RecordedEvent | None) -> str:
    """Return the cause of a failure: the error that the run recorded, else the end of its command."""
    if last_event is not None and last_event.kind == "failed":
        return last_event.detail
    return ended.cause


def _announce(decision: Decision, restarts: Restarts, first_cause: str) -> None:
    """Log a decision, unless the run just ends."""
    if decision.action is Action.GIVE_UP:
        reason = "no checkpoint could be saved"
        if restarts.num_idle:
            reason = f"{plural(restarts.num_idle, 'start')} completed no checkpoint. Cause of the first: {first_cause}"
        LOG.warning("supervise: status %d: not started again, because %s", decision.status, reason)
    if decision.action is Action.RESTART:
        delay = ""
        if decision.pause:
            delay = f" in {decision.pause} s"
        restarts_left = plural(restarts.num_left, "restart")
        LOG.warning("supervise: status %d: started again%s, %s left", decision.status, delay, restarts_left)
