"""Stops a rank whose launcher has died (orphan protection).

The kernel could signal this (PR_SET_PDEATHSIG), but does so when the thread that started the
process ends, and not for the parent of the parent: `deepspeed` starts deepspeed.launcher.launch,
which starts the ranks.
"""

import logging
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from megatape.runtime.launchers import launcher_of_environment

LOG = logging.getLogger(__name__)

POLL_INTERVAL = 1.0  # seconds
DEEPSPEED_COMMANDS = ("deepspeed", "deepspeed.pt", "ds", "deepspeed.launcher.runner")


def stop_with_launcher() -> None:
    """Send this process SIGTERM once its launcher has ended.

    Without a launcher it does nothing: the process may outlive the shell from which it was started.
    """
    if launcher_of_environment() is not None:
        parent = os.getppid()
        threading.Thread(target=_stop_after, args=(parent, _deepspeed_command(parent)), name="parent", daemon=True).start()


def _stop_after(parent: int, runner: int | None) -> None:
    """Wait until one of two processes has ended, then send SIGTERM to this one."""
    while (ended := _ended_process(parent, runner)) is None:
        time.sleep(POLL_INTERVAL)
    LOG.warning("the launcher (process %s) has ended: this rank stops, as on SIGTERM", ended)
    os.kill(os.getpid(), signal.SIGTERM)


def _ended_process(parent: int, runner: int | None) -> int | None:
    """The first of two processes to have ended: its child has another parent now."""
    if os.getppid() != parent:
        return parent
    with suppress(psutil.Error, OSError):  # a process that is not shown just now has not ended
        if runner is not None and psutil.Process(parent).ppid() != runner:
            return runner
    return None


def _deepspeed_command(parent: int) -> int | None:
    """The parent of `parent` if it is DeepSpeed's command.

    On other hosts it is a remote shell, which may end earlier.
    """
    with suppress(psutil.Error, OSError):
        process = psutil.Process(parent).parent()
        if process is not None and any(Path(word).name in DEEPSPEED_COMMANDS for word in process.cmdline()[:3]):
            return process.pid
    return None
