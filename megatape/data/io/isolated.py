"""A process of its own for work that may end it: a library that aborts on a corrupted file, a template that fills the memory.

A process pool of the standard library has no generators and hides the signal that ended a process.
"""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from megatape.utils.python_process import safe_start


class ProcessEnded(Exception):
    """The process ended before its last answer.

    Attributes:
        status: Its exit status, or the negative number of the signal that ended it.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"ended by {signal.Signals(-status).name if status < 0 else status}")
        self.status = status


class IsolatedProcess:
    """A process that answers one request after another of this one, with which it ends. It takes a second to start.

    Args:
        answers: Yields the answers to a request, in the process; a function of a module.
    """

    def __init__(self, answers: Callable[..., Iterator[Any]]) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would take along locks of this process's threads
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(answers, other), daemon=True)
        with safe_start():
            self._process.start()
        other.close()

    def ask(self, *request: Any) -> Iterator[Any]:
        """The answers to a request, as they come. Unless all are taken, the process must be ended.

        Raises:
            ProcessEnded: The process has ended.
            Exception: One that `answers` raises.
        """
        self._exchange(lambda: self._connection.send(request))
        while (answer := self._exchange(self._connection.recv)) is not None:
            if isinstance(answer, Exception):
                raise answer
            yield answer

    def end(self) -> None:
        """End the process, whatever it does."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command, which ends this process
    with suppress(EOFError, ConnectionError):
        while True:
            request = connection.recv()
            try:
                for answer in answers(*request):
                    connection.send(answer)
                connection.send(None)
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001  # the other process raises it
                error.add_note(traceback.format_exc())
                connection.send(error)
