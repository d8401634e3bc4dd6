"""A command that stops if its supervisor ends. The supervisor also waits for the command's orphans."""

import ctypes
import logging
import os
import subprocess
from collections.abc import Sequence
from functools import partial

import psutil

from megatape.errors import UserError
from megatape.tools.cluster.supervise.ended_command import EndedCommand
from megatape.utils.processes.python_process import end_with_parent, launcher_environment, shell_status

LOG = logging.getLogger(__name__)

# Option of prctl(2), which only exists on Linux.
PR_SET_CHILD_SUBREAPER = 36
# Seconds of waiting for orphans before a warning is printed.
ORPHAN_NOTICE = 10.0
# Maximum seconds of waiting for orphans, which may be writing a checkpoint.
ORPHAN_TIMEOUT = 1800.0


class SupervisedCommand:
    """A running command. It gets SIGTERM when this process ends in any way, SIGKILL included.

    Args:
        words: Command line.

    Raises:
        UserError: The command cannot be started.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._name = words[0]
        self._prctl = ctypes.CDLL(None).prctl
        # Become the parent of the command's orphans.
        self._prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._earlier_children = set(psutil.Process().children())

        try:
            self._process = subprocess.Popen(
                words,
                env=launcher_environment(words),
                preexec_fn=partial(end_with_parent, os.getpid()),  # noqa: PLW1509 (it needs no lock of another thread)
            )
        except OSError as error:
            raise UserError(f"{words[0]!r} cannot be started ({error}): give the command that starts the ranks") from None

    def send(self, number: int) -> None:
        """Send a signal to the command, unless it has ended."""
        self._process.send_signal(number)

    def wait(self) -> EndedCommand:
        """Wait until the command and its orphans end. Orphans are killed after ORPHAN_TIMEOUT."""
        status = shell_status(self._process.wait())
        cause = ""
        if status:
            cause = f"{self._name} ended with status {status}"
        orphan_statuses: list[int] = []
        while True:
            orphans = [process for process in psutil.Process().children() if self._is_orphan(process)]
            if not orphans:
                break
            orphan_statuses += _wait_for(orphans)
        self._prctl(PR_SET_CHILD_SUBREAPER, 0)
        return EndedCommand(status, orphan_statuses, cause)

    def _is_orphan(self, process: psutil.Process) -> bool:
        """Whether the command started this child and it is no daemon, which would have a process group of its own."""
        return process not in self._earlier_children and os.getpgid(process.pid) == os.getpgrp()


def _wait_for(orphans: Sequence[psutil.Process]) -> list[int]:
    """Wait for processes, and kill those still running after ORPHAN_TIMEOUT. Returns the exit statuses of the others."""
    ended, running = psutil.wait_procs(orphans, ORPHAN_NOTICE)
    if running:
        pids = ", ".join(str(process.pid) for process in running)
        LOG.warning("the command has ended, waiting for its processes that are still running: %s", pids)
        ended_later, running = psutil.wait_procs(running, ORPHAN_TIMEOUT)
        ended += ended_later
    for process in running:
        process.kill()
    return [shell_status(process.returncode) for process in ended]
