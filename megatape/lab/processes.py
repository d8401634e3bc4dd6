"""Child processes: the one way in which benchmarks and studies start them."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import IO, Any

from megatape.reliability.signals import handled
from megatape.utils.python_process import child_environment

# kept of a failure's message
ERROR_LINES = 3
ERROR_LENGTH = 500


@contextmanager
def child(
    command: Sequence[str], limit: float | None = None, grace: float = 0, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start a command and, when the block ends, kill what is left of it.

    Unless the options say otherwise, it reads nothing, its output and errors go to one pipe, and it has a process group of its
    own, which ends as a whole and which a terminal's Ctrl-C does not reach.

    Args:
        command: Program and arguments.
        limit: Seconds after which it is killed.
        grace: Seconds that its group has to end by itself after the block.
        options: Options of subprocess.Popen. `env` lists only changes of this process's environment.
    """
    usual = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    options = usual | options
    options["env"] = child_environment(options.get("env"))
    process = subprocess.Popen(command, text=True, **options)
    own_group = options["start_new_session"]
    timer = threading.Timer(max(limit or 0, 0), _kill, [process, own_group])
    if limit is not None:
        timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and _alive(process.pid):
            time.sleep(0.2)
        _kill(process, own_group)
        process.wait()


def finish(process: subprocess.Popen[str], log: IO[str] | None = None) -> str:
    """Wait for the end of a `child`.

    Args:
        process: The child, whose output goes to a pipe.
        log: File that gets its output, too.

    Returns:
        Its output.

    Raises:
        ChildProcessError: It failed; the message has its last lines.
    """
    output, errors = process.communicate()
    if log:
        log.write(output)
    if process.returncode:
        raise ChildProcessError(f"exited with status {process.returncode}: {ending(errors or output)}")
    return output


def ending(log: str) -> str:
    """The last lines of a log, as one."""
    return " / ".join(lines(log)[-ERROR_LINES:])[-ERROR_LENGTH:]


def lines(text: str) -> list[str]:
    """Lines that are not blank."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def interruptible() -> AbstractContextManager[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, also in background jobs, for which shells ignore SIGINT."""
    return handled(signal.default_int_handler, signal.SIGINT, signal.SIGTERM)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _kill(process: subprocess.Popen[str], group: bool) -> None:
    """End a process, and its group."""
    with suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
