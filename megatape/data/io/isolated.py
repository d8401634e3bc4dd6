"""Runs work that may crash in child processes: a library aborting on a corrupted file, a template filling the memory.

Process pools of the standard library support no generators, and hide the signal that ended a process.
"""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from megatape.utils.processes.python_process import safe_start


class ProcessEnded(Exception):
    """A child process ended before its last answer.

    Attributes:
        status: Exit status, or the negative number of the signal that ended it.
    """

    def __init__(self, status: int) -> None:
        reason = f"{status}"
        if status < 0:
            reason = signal.Signals(-status).name
        super().__init__(f"ended by {reason}")
        self.status = status


class IsolatedProcess:
    """A child process answering one request after another. It takes a second to start, and ends with this process.

    Args:
        answers: Module-level function yielding the answers to a request, called in the child process.
    """

    def __init__(self, answers: Callable[..., Iterator[Any]]) -> None:
        # A fork would copy locks held by this process's threads.
        context = multiprocessing.get_context("spawn")
        self._connection, child_connection = context.Pipe()
        self._process = context.Process(target=_serve, args=(answers, child_connection), daemon=True)
        with safe_start():
            self._process.start()
        child_connection.close()

    def ask(self, *request: Any) -> Iterator[Any]:
        """Yield the answers to a request as they arrive. A caller not reading all of them must end the process.

        Raises:
            ProcessEnded: The process has ended.
            Exception: `answers` raised it.
        """
        self._exchange(lambda: self._connection.send(request))
        while True:
            answer = self._exchange(self._connection.recv)
            if answer is None:
                return
            if isinstance(answer, Exception):
                raise answer
            yield answer

    def end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()

    def _exchange(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (EOFError, OSError):
            self._process.join()
            raise ProcessEnded(self._process.exitcode or 0) from None


def _serve(answers: Callable[..., Iterator[Any]], connection: Connection) -> None:
    """Answer requests until the other process ends."""
    # Ctrl-C also reaches the command, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, ConnectionError):
        while True:
            request = connection.recv()
            try:
                for answer in answers(*request):
                    connection.send(answer)
                connection.send(None)
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001  # The other process raises it.
                error.add_note(traceback.format_exc())
                connection.send(error)
