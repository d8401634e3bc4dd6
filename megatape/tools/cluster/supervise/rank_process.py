"""A process that becomes a rank of a run on this machine."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from megatape.distributed.launch.launchers import LAUNCHERS
from megatape.reliability.standby import PIPE_VARIABLE, assignment
from megatape.utils.processes.process_table import seconds_since_boot
from megatape.utils.processes.python_process import child_environment, end_with_parent


class RankProcess:
    """A process that imports everything and waits for its rank. It gets SIGTERM when this process ends in any way.

    Args:
        command: Command line of `megatape pretrain`.
    """

    def __init__(self, command: Sequence[str]) -> None:
        parent = os.getpid()

        def prepare() -> None:
            end_with_parent(parent)
            signal.signal(signal.SIGINT, signal.SIG_IGN)

        environment = child_environment()
        for launcher in LAUNCHERS:
            # Another launcher, such as srun, may have started the supervisor.
            environment.pop(launcher.marker, None)
        reader, self._writer = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                env=environment | {PIPE_VARIABLE: str(reader)},
                pass_fds=[reader],
                preexec_fn=prepare,  # noqa: PLW1509 (it needs no lock of another thread)
            )
        finally:
            os.close(reader)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def status(self) -> int | None:
        """Return the exit status, negative after a signal, None while the process is running."""
        return self._process.poll()

    def become(self, variables: Mapping[str, str]) -> None:
        """Give the process its rank.

        Args:
            variables: Environment variables of the rank.
        """
        message = assignment(variables, seconds_since_boot())
        # The process may have failed to start. Its exit status says so.
        with suppress(BrokenPipeError):
            os.write(self._writer, message)
        os.close(self._writer)

    def discard(self) -> None:
        """End a process that is not needed as a rank."""
        os.close(self._writer)
        self._process.kill()
        self._process.wait()

    def send(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self._process.send_signal(number)
