"""Processes that run one function and send messages."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Self

from megatape.utils.processes.python_process import end_with_parent, safe_start


class Death(NamedTuple):
    """A process that failed or was killed.

    Attributes:
        pid: Process id.
        how: Signal or exit status, in words.
    """

    pid: int
    how: str


class WorkerPool:
    """Processes running one function. They are killed when the `with` block ends.

    Each has its own connection: a shared queue would stay locked if a process is killed while holding the lock.

    Args:
        target: Called in each process with a connection for its messages, followed by `arguments`.
        arguments: Further arguments.
        num_workers: Number of processes.
    """

    def __init__(self, target: Callable[..., None], arguments: tuple[Any, ...], num_workers: int) -> None:
        # A fork would copy locks held by this process's threads.
        self._context = multiprocessing.get_context("spawn")
        self._target = target
        self._arguments = arguments
        self._num_workers = num_workers
        self._workers: dict[BaseProcess, Connection] = {}

    def __enter__(self) -> Self:
        for _ in range(self._num_workers):
            self.start_worker()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._workers:
            # A stopped process would not react to SIGTERM.
            process.kill()
        for process in self._workers:
            process.join()

    @property
    def pids(self) -> list[int | None]:
        return [process.pid for process in self._workers]

    def start_worker(self) -> None:
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=self._target, args=(sender, *self._arguments))
        self._workers[process] = receiver
        with safe_start():
            process.start()
        sender.close()

    def messages(self) -> Iterator[Any]:
        """Yield the messages of all processes, and a `Death` for each that fails, until one exits with status 0."""
        while True:
            open_connections = [connection for connection in self._workers.values() if not connection.closed]
            ready = wait([*open_connections, *(process.sentinel for process in self._workers)])
            for process, connection in list(self._workers.items()):
                yield from _received(connection)
                if process.sentinel not in ready:
                    continue
                # Messages sent before the process ended.
                yield from _received(connection)
                process.join()
                if process.exitcode == 0:
                    return
                del self._workers[process]
                yield Death(process.pid or 0, _describe(process.exitcode or 0))


def _received(connection: Connection) -> Iterator[Any]:
    """Yield the waiting messages. Closes the connection after the last message of an ended process."""
    try:
        while not connection.closed and connection.poll():
            yield connection.recv()
    except (EOFError, OSError):
        connection.close()


def _describe(exit_code: int) -> str:
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with status {exit_code}"


def kill_with_pool() -> None:
    """Kill this worker when the process of its pool ends for any reason. Nothing is lost: finished units are on disk."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    if sys.platform == "linux":
        # The kernel kills the worker at once, even while a library blocks all threads.
        assert parent.pid is not None
        end_with_parent(parent.pid, signal.SIGKILL)
    # The thread serves other systems.
    threading.Thread(target=_kill_after, args=(parent,), name="parent", daemon=True).start()


def _kill_after(parent: BaseProcess) -> None:
    # The parent holds one end of a pipe open, so this notices its end.
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
