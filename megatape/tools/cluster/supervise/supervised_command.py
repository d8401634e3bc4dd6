"""A command that ends when its supervisor ends, and whose orphans are waited for."""

import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from megatape.errors import UserError
from megatape.tools.cluster.restarts import KILLED_BY
from megatape.utils.python_process import PR_SET_PDEATHSIG, launcher_environment

LOG = logging.getLogger(__name__)

# Option of prctl(2), on Linux only.
PR_SET_CHILD_SUBREAPER = 36
# Seconds of waiting for the command's orphans before a warning.
ORPHAN_NOTICE = 10.0
# Maximum seconds of waiting for the command's orphans, which may be writing a checkpoint.
ORPHAN_TIMEOUT = 1800.0


@dataclass(frozen=True)
class EndedCommand:
    """Exit statuses of a command, as shells number them.

    Attributes:
        status: Exit status of the command.
        orphan_statuses: Exit statuses of the processes that it left, without those that were killed.
    """

    status: int
    orphan_statuses: Sequence[int]


class SupervisedCommand:
    """A running command. It gets SIGTERM when this process ends in any way, SIGKILL included.

    Args:
        words: The command.

    Raises:
        UserError: The command cannot be started.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._prctl = ctypes.CDLL(None).prctl
        supervisor = os.getpid()
        # The kernel gives orphans of the command to this process.
        self._prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._others = set(psutil.Process().children())

        def bind() -> None:
            self._prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            has_ended_meanwhile = os.getppid() != supervisor
            if has_ended_meanwhile:
                os.kill(os.getpid(), signal.SIGTERM)

        try:
            self._process = subprocess.Popen(
                words,
                env=launcher_environment(words),
                preexec_fn=bind,  # noqa: PLW1509 (it needs no lock of another thread)
            )
        except OSError as error:
            raise UserError(f"{words[0]!r} cannot be started ({error}): give the command that starts the ranks") from None

    def send(self, number: int) -> None:
        """Send the command a signal, unless it has ended."""
        self._process.send_signal(number)

    def wait(self) -> EndedCommand:
        """Wait until the command and its orphans end. Orphans are killed after ORPHAN_TIMEOUT."""
        status = _shell_status(self._process.wait())
        orphan_statuses: list[int] = []
        while True:
            orphans = [process for process in psutil.Process().children() if self._is_orphan(process)]
            if not orphans:
                break
            orphan_statuses += _wait_for(orphans)
        self._prctl(PR_SET_CHILD_SUBREAPER, 0)
        return EndedCommand(status, orphan_statuses)

    def _is_orphan(self, process: psutil.Process) -> bool:
        """Whether the command started this child. Daemons have process groups of their own."""
        return process not in self._others and os.getpgid(process.pid) == os.getpgrp()


def _wait_for(orphans: Sequence[psutil.Process]) -> list[int]:
    """Wait for processes, kill them after ORPHAN_TIMEOUT, and return the statuses of those that ended before."""
    ended, running = psutil.wait_procs(orphans, ORPHAN_NOTICE)
    if running:
        pids = ", ".join(str(process.pid) for process in running)
        LOG.warning("the command has ended, waiting for processes that it left: %s", pids)
        ended_later, running = psutil.wait_procs(running, ORPHAN_TIMEOUT)
        ended += ended_later
    for process in running:
        process.kill()
    return [_shell_status(process.returncode) for process in ended]


def _shell_status(code: int) -> int:
    """Return the exit status as shells number it, from that of subprocess, which is negative after a signal."""
    if code < 0:
        return KILLED_BY - code
    return code
