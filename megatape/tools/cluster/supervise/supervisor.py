"""Restarts a run after failures, for `megatape supervise`."""

import logging
from collections.abc import Sequence

from megatape.errors import ExitStatus
from megatape.reliability.signals import STOPPING, handled
from megatape.run_folder import RunFolder
from megatape.tools.cluster.restarts import SUPERVISOR_POLICY, Action, RestartPolicy, Restarts
from megatape.tools.cluster.supervise.run_progress import RunProgress
from megatape.tools.cluster.supervise.stop import StopRequest, status_of_stop
from megatape.tools.cluster.supervise.supervised_command import SupervisedCommand
from megatape.utils.waiting import wait_until

LOG = logging.getLogger(__name__)


def supervise(
    words: Sequence[str],
    folder: RunFolder,
    restarts: int,
    ends_process: bool = False,
    policy: RestartPolicy = SUPERVISOR_POLICY,
) -> int:
    """Run a command that trains and resumes a run, and restart it up to `restarts` times.

    A signal is passed on to the command, and also ends the supervision.

    Args:
        words: Command line.
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
    with handled(stop.receive, *STOPPING, ends_process=ends_process):
        while True:
            progress = RunProgress(folder)
            command = SupervisedCommand(words)
            stop.pass_on_to(command)
            ended = command.wait()
            if stop.is_received:
                return status_of_stop(ended, progress.last_event(), stop.is_by_user, policy)

            status = ended.status
            is_launcher_dead = status in policy.final and any(ended.orphan_statuses)
            if is_launcher_dead:
                status = ExitStatus.DIED
            decision = restart_decisions.decide(status, progress.has_advanced)
            status = decision.status
            if decision.action is Action.END:
                return status
            if decision.action is Action.GIVE_UP:
                LOG.warning("supervise: status %d, and no checkpoint was completed since the start: not started again", status)
                return status
            delay = ""
            if decision.pause:
                delay = f" in {decision.pause} s"
            LOG.warning("supervise: status %d: started again%s, %d restarts left", status, delay, restart_decisions.num_left)
            if wait_until(lambda: stop.is_received, decision.pause, interval=1.0):
                return status
