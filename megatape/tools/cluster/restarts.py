"""Starting a run again that ended for a reason that may pass: a rank died, a device was lost, a disk was full."""

import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import psutil

from megatape.checkpoint.manifest import MANIFEST, load_manifest
from megatape.distributed.launchers import PR_SET_PDEATHSIG
from megatape.errors import ExitStatus, UserError
from megatape.reliability.signals import STOPPING, handled
from megatape.run_folder import RunFolder
from megatape.utils.files import read_lines, retry_transient_errors
from megatape.utils.python_process import launcher_environment
from megatape.utils.waiting import wait_until

LOG = logging.getLogger(__name__)

PR_SET_CHILD_SUBREAPER = 36  # of prctl(2), on Linux only
ORPHAN_NOTICE = 10.0  # seconds of waiting for the command's orphans before a warning
ORPHAN_TIMEOUT = 1800.0  # seconds for the command's orphans, which may be writing a checkpoint


class Command:
    """A running command. It gets SIGTERM when this process ends in any way, SIGKILL included.

    Raises:
        UserError: The command cannot be started.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._prctl = ctypes.CDLL(None).prctl
        pid = os.getpid()
        self._prctl(PR_SET_CHILD_SUBREAPER, 1)  # the kernel gives this process the children of those that end
        self._others = set(psutil.Process().children())

        def bind() -> None:
            self._prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != pid:  # which has ended meanwhile
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

    def wait(self) -> tuple[int, list[int]]:
        """Wait until the command and its orphans end. Orphans are killed after ORPHAN_TIMEOUT.

        Returns:
            The exit status of the command, as shells number it, and those of its orphans.
        """
        status = _shell_status(self._process.wait())
        orphan_statuses = []
        while orphans := [process for process in psutil.Process().children() if self._is_orphan(process)]:
            ended, alive = psutil.wait_procs(orphans, ORPHAN_NOTICE)
            if alive:
                pids = ", ".join(str(process.pid) for process in alive)
                LOG.warning("the command has ended, waiting for processes that it left: %s", pids)
                ended_later, alive = psutil.wait_procs(alive, ORPHAN_TIMEOUT)
                ended += ended_later
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


# After these a run is not started again. Every other status but NOT_SAVED is a death.
FINAL = (ExitStatus.DONE, ExitStatus.USER_ERROR, ExitStatus.DIVERGED, ExitStatus.UNFINISHED, ExitStatus.INTERRUPTED)
UNSAVED_STARTS = 3  # in a row after NOT_SAVED, without a new checkpoint
PAUSE = 60  # seconds before each of them


def supervise(words: Sequence[str], folder: RunFolder, restarts: int, ends_process: bool = False) -> int:
    """Run a command that trains in `folder` and resumes, and start it again up to `restarts` times.

    After a death it is started again only if a checkpoint was completed since its start: a run that
    dies at the same step each time would die for ever. After NOT_SAVED it is started again without
    one, UNSAVED_STARTS times in a row. A signal is passed on and ends this, too.

    Args:
        words: The command.
        folder: Folder of the run.
        restarts: Maximum number of restarts.
        ends_process: Whether this process ends afterwards. It then ignores further signals.

    Returns:
        The exit status of the last start.

    Raises:
        OSError: The command cannot be started, or the folder cannot be read.
    """
    stopped = by_user = False
    command: Command | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped, by_user
        stopped = True
        by_user = by_user or number == signal.SIGINT
        if command is not None and number != signal.SIGINT:  # a terminal has sent that to the command as well
            command.send(number)

    unsaved = 0  # starts in a row that ended with NOT_SAVED
    with handled(stop, *STOPPING, ends_process=ends_process):
        for left in range(restarts, -1, -1):
            before = completed(folder)
            num_events = len(_events(folder))
            command = Command(words)
            if stopped:  # before there was a command to pass the signal on to
                command.send(signal.SIGTERM)
            status, orphans = command.wait()
            if stopped:
                if ExitStatus.UNFINISHED in orphans:
                    status = ExitStatus.UNFINISHED
                status = _status_of_stop(status, _events(folder)[num_events:], by_user)
            elif status in FINAL and any(orphans):
                status = ExitStatus.DIED  # the launcher died
            elif unsaved and status == ExitStatus.USER_ERROR:
                status = ExitStatus.NOT_SAVED  # a disk that is still full fails the start, too
            if stopped or status in FINAL or not left:
                break
            unsaved = unsaved + 1 if status == ExitStatus.NOT_SAVED else 0
            if not (completed(folder) - before or 0 < unsaved <= UNSAVED_STARTS):
                LOG.warning("supervise: status %d, and no checkpoint was completed since the start: not started again", status)
                break
            pause = PAUSE if unsaved else 0
            after = f" in {pause} s" if pause else ""
            LOG.warning("supervise: status %d: started again%s, %d restarts left", status, after, left - 1)
            if wait_until(lambda: stopped, pause, interval=1.0):
                break
    return status


def _status_of_stop(status: int, events: Sequence[dict[str, Any]], by_user: bool) -> int:
    """Return the exit status of a run after a request to stop.

    The signal often ends the launcher as well, or makes it report 1, while its ranks write their checkpoint. In this case the
    events recorded by the ranks decide.

    Args:
        status: Exit status of the command.
        events: Events recorded by the run since the start of the command.
        by_user: Whether the user pressed Ctrl-C.
    """
    comes_from_ranks = status in FINAL and status != ExitStatus.INTERRUPTED
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


def completed(folder: RunFolder) -> set[tuple[str, int]]:
    """Name and time of completion of every valid checkpoint, as far as its manifest tells.

    Their steps would not show that a run advances: one that resumes from an older checkpoint, since
    newer ones are corrupted or led to a spike, writes smaller steps.

    Raises:
        OSError: The folder cannot be read for some time.
    """

    def look() -> set[tuple[str, int]]:
        found = set()
        for path in folder.list_checkpoints():
            with suppress(ValueError, FileNotFoundError):  # corrupted, stray or removed meanwhile
                load_manifest(path)
                found.add((path.name, (path / MANIFEST).stat().st_mtime_ns))
        return found

    return retry_transient_errors(look)
