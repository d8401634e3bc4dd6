"""A command that does not outlive this process, and whose orphans are waited for.

Linux only, by prctl(2).
"""

import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Sequence

import psutil

LOG = logging.getLogger(__name__)

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ORPHAN_TIMEOUT = 1800.0  # seconds for the command's orphans, which may be writing a checkpoint


class Command:
    """A running command. It gets SIGTERM when this process ends in any way, SIGKILL included.

    Raises:
        OSError: The command cannot be started.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._prctl, pid = ctypes.CDLL(None).prctl, os.getpid()
        self._prctl(PR_SET_CHILD_SUBREAPER, 1)  # the kernel gives this process the children of those that end
        self._others = set(psutil.Process().children())

        def bind() -> None:
            self._prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != pid:  # which has ended meanwhile
                os.kill(os.getpid(), signal.SIGTERM)

        self._process = subprocess.Popen(words, preexec_fn=bind)  # noqa: PLW1509 (it needs no lock that another thread may hold)

    def send(self, number: int) -> None:
        """Send the command a signal, unless it has ended."""
        self._process.send_signal(number)

    def wait(self) -> tuple[int, list[int]]:
        """Wait until the command and its orphans end. Orphans are killed after ORPHAN_TIMEOUT.

        Returns:
            The exit status of the command, as shells number it, and those of its orphans.
        """
        status, orphan_statuses = _shell_status(self._process.wait()), []
        while orphans := [process for process in psutil.Process().children() if self._is_orphan(process)]:
            pids = ", ".join(str(process.pid) for process in orphans)
            LOG.warning("the command has ended, waiting for processes that it left: %s", pids)
            ended, alive = psutil.wait_procs(orphans, ORPHAN_TIMEOUT)
            orphan_statuses += [_shell_status(process.returncode) for process in ended]
            for process in alive:
                process.kill()
        self._prctl(PR_SET_CHILD_SUBREAPER, 0)
        return status, orphan_statuses

    def _is_orphan(self, process: psutil.Process) -> bool:
        """Whether the command started this child. Daemons have process groups of their own."""
        return process not in self._others and os.getpgid(process.pid) == os.getpgrp()


def _shell_status(code: int) -> int:
    return code if code >= 0 else 128 - code
