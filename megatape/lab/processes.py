"""Child processes started by benchmarks and studies."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import IO, Any

from megatape.reliability.signals import handled
from megatape.utils.processes.python_process import child_environment

# Maximum size of a failure message.
MAX_ERROR_LINES = 3
MAX_ERROR_LENGTH = 500
# Seconds between checks of an exiting process group.
POLL_SECONDS = 0.2


@contextmanager
def child(
    command: Sequence[str],
    limit: float | None = None,
    grace: float = 0,
    **options: Any,
) -> Iterator[subprocess.Popen[str]]:
    """Start a command, and kill its remaining processes when leaving the block.

    By default, standard input is empty, output and errors go to one pipe, and the command has its own process group. The whole
    group is killed, and Ctrl-C in a terminal does not reach it.

    Args:
        command: Program and arguments.
        limit: Seconds before the command is killed. None for no limit.
        grace: Seconds for the group to exit after the block.
        options: Options of subprocess.Popen. `env` lists only changes of this process's environment.
    """
    popen_options: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "start_new_session": True,
    }
    popen_options |= options
    popen_options["env"] = child_environment(popen_options.get("env"))
    process = subprocess.Popen(command, text=True, **popen_options)
    has_own_group = popen_options["start_new_session"]
    timer = threading.Timer(max(limit or 0, 0), _kill, [process, has_own_group])
    if limit is not None:
        timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and _is_alive(process.pid):
            time.sleep(POLL_SECONDS)
        _kill(process, has_own_group)
        process.wait()


def finish(process: subprocess.Popen[str], log: IO[str] | None = None) -> str:
    """Wait for a `child` to exit, and return its output.

    Args:
        process: Child writing its output to a pipe.
        log: File that also gets the output.

    Raises:
        ChildProcessError: The child failed. The message has the last lines of its output.
    """
    output, errors = process.communicate()
    if log:
        log.write(output)
    if process.returncode:
        raise ChildProcessError(f"exited with status {process.returncode}: {ending(errors or output)}")
    return output


def ending(log: str) -> str:
    """Join the last lines of a log into one."""
    last_lines = lines(log)[-MAX_ERROR_LINES:]
    return " / ".join(last_lines)[-MAX_ERROR_LENGTH:]


def lines(text: str) -> list[str]:
    """Return the stripped lines of a text, skipping blank ones."""
    stripped = [line.strip() for line in text.splitlines()]
    return [line for line in stripped if line]


def interruptible() -> AbstractContextManager[None]:
    """Return a context in which SIGINT and SIGTERM raise KeyboardInterrupt.

    This includes background jobs, in which shells ignore SIGINT.
    """
    return handled(signal.default_int_handler, signal.SIGINT, signal.SIGTERM)


def _is_alive(group: int) -> bool:
    """Whether a process of the group exists."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _kill(process: subprocess.Popen[str], group: bool) -> None:
    """Kill a process or its whole group."""
    with suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
