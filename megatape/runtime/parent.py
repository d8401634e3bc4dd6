"""Ends a rank in good order when the launcher that started it is gone: nobody is left to stop it, or to notice its end.

The kernel could signal this (PR_SET_PDEATHSIG), but does so when the thread that started the process ends, and not for the
parent of the parent: `deepspeed` starts deepspeed.launcher.launch, which starts the ranks.
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

PERIOD = 1.0  # seconds between looks
RUNNERS = ("deepspeed", "deepspeed.pt", "ds", "deepspeed.launcher.runner")  # names of DeepSpeed's command


def stop_with_launcher() -> None:
    """From now on, send this process SIGTERM once its launcher has ended.

    Does nothing in a process that no launcher started, which may outlive the shell it came from."""
    if launcher_of_environment() is not None:
        parent = os.getppid()
        threading.Thread(target=_wait, args=(parent, _runner(parent)), name="parent", daemon=True).start()


def _wait(parent: int, runner: int | None) -> None:
    while (ended := _ended(parent, runner)) is None:
        time.sleep(PERIOD)
    LOG.warning("the launcher (process %s) has ended: this rank stops, as on SIGTERM", ended)
    os.kill(os.getpid(), signal.SIGTERM)


def _ended(parent: int, runner: int | None) -> int | None:
    """The one of the two that has ended: whose child has another parent now."""
    if os.getppid() != parent:
        return parent
    with suppress(psutil.Error, OSError):  # what cannot be seen just now has not ended
        if runner is not None and psutil.Process(parent).ppid() != runner:
            return runner
    return None


def _runner(parent: int) -> int | None:
    """The parent's parent, where that is DeepSpeed's command on this host. On other hosts it is a remote shell, which may
    go."""
    with suppress(psutil.Error, OSError):
        process = psutil.Process(parent).parent()
        if process is not None and any(Path(word).name in RUNNERS for word in process.cmdline()[:3]):
            return process.pid
    return None
