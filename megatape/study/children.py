"""Child processes that stop when this one is told to stop, and that keep a folder locked while any of them is alive."""

import fcntl
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from megatape.errors import UserError, path_errors

LOG = logging.getLogger(__name__)

GRACE = 60  # seconds that a launcher's ranks have to exit after it


class Stopped(Exception):
    """`Children.stop` was called: no command starts any more."""


class Children:
    """Runs commands for several threads, each in its own process group, which a terminal's Ctrl-C does not reach."""

    def __init__(self, lock: IO[str]) -> None:
        self._lock = lock
        self._mutex = threading.Lock()
        self._running: set[int] = set()
        self._stopped = False

    def run(self, command: list[str], environment: dict[str, str], log: Path) -> int:
        """Run a command, append its output to `log`, and return its exit status once its whole group has exited.

        Raises Stopped after `stop`.
        """
        with log.open("a", encoding="utf-8") as file:
            with self._mutex:
                if self._stopped:
                    raise Stopped
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=environment,
                    start_new_session=True,
                    pass_fds=[self._lock.fileno()],
                )
                self._running.add(process.pid)
            status = process.wait()
            _wait_for_group(process.pid)  # a launcher may exit before its ranks do
            with self._mutex:
                self._running.discard(process.pid)
            return status

    def stop(self) -> None:
        """Start no more commands, and interrupt those that run."""
        with self._mutex:
            self._stopped = True
            for group in self._running:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGINT)


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[IO[str]]:
    """Create the folder if needed and lock it for this process and the children that inherit the lock file.

    wait: until no other process holds the lock, and say so. Otherwise raises UserError if one does.
    """
    with path_errors():
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w", encoding="utf-8")
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = f"{folder} is in use by another study, or by runs it left behind: "
            if not wait:
                raise UserError(f"{held}wait for them, stop them, or choose another folder") from None
            LOG.warning("%swaiting until they end", held)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, also in background jobs, for which shells ignore SIGINT."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for_group(group: int) -> None:
    deadline = time.monotonic() + GRACE
    try:
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.2)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
