"""Child processes of a study, running several at a time and stopping together."""

import os
import signal
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from megatape.lab.processes import child

# Changes of a child process's environment.
Environment = dict[str, str]

# Seconds for ranks to exit after their launcher.
GRACE_SECONDS = 60


class Stopped(Exception):
    """Raised instead of starting a command after `Children.stop`."""


class Children:
    """Runs commands, each called from its own thread.

    The commands inherit the study's lock, so the folder stays locked until the last of them exits.
    """

    def __init__(self, lock: IO[bytes]) -> None:
        self._lock = lock
        self._mutex = threading.Lock()
        self._groups: set[int] = set()
        self._stopped = False

    def run(self, command: list[str], environment: Environment, log: Path) -> int:
        """Run a command, append its output to a log, and wait until its whole process group has exited.

        Args:
            command: Program and arguments.
            environment: Changes of this process's environment.
            log: Log file.

        Returns:
            Exit status of the command.

        Raises:
            Stopped: `stop` was called.
        """
        with log.open("a", encoding="utf-8") as file, ExitStack() as stack:
            with self._mutex:
                if self._stopped:
                    raise Stopped
                running = child(
                    command,
                    grace=GRACE_SECONDS,
                    env=environment,
                    stdout=file,
                    pass_fds=[self._lock.fileno()],
                )
                process = stack.enter_context(running)
                self._groups.add(process.pid)
            # A launcher may exit before its ranks do. Leaving the block waits for them.
            status = process.wait()
        with self._mutex:
            self._groups.discard(process.pid)
        return status

    def stop(self) -> None:
        """Interrupt the running commands, and start no more."""
        with self._mutex:
            self._stopped = True
            for group in self._groups:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGINT)
