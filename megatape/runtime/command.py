"""A command that this process runs: it does not outlive this process, and the processes that it leaves are waited for.

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
GRACE = 1800.0  # seconds for processes that the command left, which may be writing a checkpoint


class Command:
    """A running command. It gets SIGTERM when this process ends in any way, SIGKILL included.

    Raises:
        OSError: The command cannot be started.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._prctl, own = ctypes.CDLL(None).prctl, os.getpid()
        self._prctl(PR_SET_CHILD_SUBREAPER, 1)  # the kernel gives this process the children of those that end
        self._others = set(psutil.Process().children())

        def bind() -> None:
            self._prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != own:  # which has ended meanwhile
                os.kill(os.getpid(), signal.SIGTERM)

        self._process = subprocess.Popen(words, preexec_fn=bind)  # noqa: PLW1509 (it needs no lock that another thread may hold)

    def send(self, number: int) -> None:
        """Send the command a signal, unless it has ended."""
        self._process.send_signal(number)

    def wait(self) -> tuple[int, list[int]]:
        """Wait for the end of the command and of the processes that it leaves, which are killed after GRACE seconds.

        Returns:
            The exit status of the command, as a shell has it, and those of the processes that it left.
        """
        status, left = _shell_status(self._process.wait()), []
        while orphans := [process for process in psutil.Process().children() if self._is_left(process)]:
            pids = ", ".join(str(process.pid) for process in orphans)
            LOG.warning("the command has ended, waiting for processes that it left: %s", pids)
            ended, alive = psutil.wait_procs(orphans, GRACE)
            left += [_shell_status(process.returncode) for process in ended]
            for process in alive:
                process.kill()
        self._prctl(PR_SET_CHILD_SUBREAPER, 0)
        return status, left

    def _is_left(self, process: psutil.Process) -> bool:
        """Whether the command left this child. Daemons, such as a shared ssh connection, have their own process group."""
        return process not in self._others and os.getpgid(process.pid) == os.getpgrp()


def _shell_status(code: int) -> int:
    return code if code >= 0 else 128 - code
