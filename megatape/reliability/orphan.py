"""Stops orphans: ranks whose launcher has ended.

The kernel can signal a parent's death (PR_SET_PDEATHSIG). But it does so when the thread that started the process ends, and
only for the parent: `deepspeed` starts deepspeed.launcher.launch, which starts the ranks.
"""

import logging
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from megatape.distributed.launch.launchers import DEEPSPEED_COMMANDS, launcher_of_environment

LOG = logging.getLogger(__name__)

# Seconds between two checks.
POLL_INTERVAL = 1.0


def stop_with_launcher(poll_interval: float = POLL_INTERVAL) -> None:
    """Send this process SIGTERM once its launcher has ended. Without a launcher, do nothing: it may outlive its shell.

    Args:
        poll_interval: Seconds between two checks.
    """
    if launcher_of_environment() is None:
        return
    parent = os.getppid()
    runner = _deepspeed_command(parent)
    threading.Thread(target=_stop_after, args=(parent, runner, poll_interval), name="parent", daemon=True).start()


def _stop_after(parent: int, runner: int | None, poll_interval: float) -> None:
    while True:
        ended = _ended_process(parent, runner)
        if ended is not None:
            break
        time.sleep(poll_interval)
    LOG.warning("the launcher (process %s) has ended: this rank stops, as on SIGTERM", ended)
    os.kill(os.getpid(), signal.SIGTERM)


def _ended_process(parent: int, runner: int | None) -> int | None:
    """Return which of two processes has ended, or None. The child of an ended process gets another parent."""
    if os.getppid() != parent:
        return parent
    # A process may be hidden for a moment without having ended.
    with suppress(psutil.Error, OSError):
        if runner is not None and psutil.Process(parent).ppid() != runner:
            return runner
    return None


def deepspeed_launcher() -> int | None:
    """Return the process of DeepSpeed's launcher that started this process, the first one on this host. None without it."""
    launcher = launcher_of_environment()
    if launcher is None or launcher.name != "deepspeed":
        return None
    parent = os.getppid()
    return _deepspeed_command(parent) or parent


def _deepspeed_command(parent: int) -> int | None:
    """Return the parent of `parent` if it is DeepSpeed's command. Elsewhere it is a remote shell, which may end earlier."""
    with suppress(psutil.Error, OSError):
        process = psutil.Process(parent).parent()
        if process is not None and any(Path(word).name in DEEPSPEED_COMMANDS for word in process.cmdline()[:3]):
            return process.pid
    return None
