"""The processes of one command that prepares a corpus.

They do not need each other: each takes the next unit that is free. The command's own process adds up
their progress and watches.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, Self

from megatape.data.counts import CorpusCounts
from megatape.data.prepare.corpus import Corpus
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.preparation import Preparation
from megatape.data.prepare.task import WHOLE, Task
from megatape.data.prepare.unit import Progress
from megatape.data.prepare.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.shards.entries import Index
from megatape.data.shards.index import load_index
from megatape.data.tokenizers.fast import fast_tokenizer
from megatape.errors import PathError, UserError, path_errors
from megatape.imports import given, import_given
from megatape.reliability.lease import LeaseTimeouts
from megatape.reliability.orphan import PR_SET_PDEATHSIG
from megatape.utils.files import check_absent, name_path
from megatape.utils.python_process import safe_start

MAX_DEATHS = 4  # of workers without a finished unit in between, after which the command ends


@path_errors()
def prepare(
    corpus: Corpus,
    output: Path,
    *,
    workers: int = 1,
    task: Task = WHOLE,
    redo: Sequence[str] = (),
    progress: Callable[[Progress], None] = lambda done: None,
    timeouts: LeaseTimeouts = DEFAULT_TIMEOUTS,
) -> tuple[Index, CorpusCounts | None]:
    """Prepare `corpus` as the data directory `output`.

    Finished units stay after an error: the same call resumes with the others.

    Args:
        corpus: The corpus.
        output: Folder to write.
        workers: Number of processes.
        task: Share of this machine.
        redo: Names of files that have changed since they were read. Their units are prepared again.
        progress: Called again and again with the work of this command so far. Bytes are of all passes, units that were finished
            before included.
        timeouts: Timeouts of leases.

    Returns:
        The index, and the counts of the corpus, or None if another process finalized it.

    Raises:
        FileExistsError: `output` exists.
        FileNotFoundError: An input does not exist.
        UserError: The source cannot be read, or something else was begun there.
        ChildProcessError: Workers were killed again and again.
    """
    if not (corpus.source.validation or 0 < corpus.validation_share < 1):  # before hours of work for an empty split
        raise UserError(f"validation_share is {corpus.validation_share}: give a share between 0 and 1, such as 0.02")
    check_absent(output)
    preparation = Preparation(corpus, PartialFolder(output, timeouts), corpus.source.units(), task=task)
    try:
        plan = preparation.begin(workers, redo)
        totals = _Totals(preparation, progress)
        tokenizer = preparation.folder.tokenizer(plan)
        left = len(preparation.units) - len(totals.finished)
        if min(workers, left) > 1:
            _work(preparation, min(workers, left), totals)
        else:
            preparation.work(tokenizer, fast_tokenizer(tokenizer, preparation.warn) if left else None, totals.add)
        return preparation.finish(plan)
    except BaseException as error:
        if isinstance(error, OSError) and output.exists():  # finished by another process, which has removed the folder
            return load_index(output), None
        name_path(error, output)
        preparation.abandon()
        raise


class _Totals:
    """Sums the progress that is reported of units, again and again."""

    def __init__(self, preparation: Preparation, show: Callable[[Progress], None]) -> None:
        units = preparation.units
        num_passes = preparation.num_passes
        # before this command
        self.show = show
        self.finished = preparation.finished()
        finished_bytes = num_passes * sum(units[number].num_bytes for number in self.finished)
        self._total = Progress(finished_bytes, total_bytes=num_passes * sum(unit.num_bytes for unit in units))
        self._reports: dict[tuple[int, str], Progress] = {}

    def add(self, number: int, name: str, progress: Progress) -> None:
        """A unit's report of one pass, which replaces the one before."""
        before = self._reports.get((number, name), Progress(0))
        self._reports[number, name] = progress
        self._total = Progress(*(total + new - old for total, new, old in zip(self._total, progress, before, strict=True)))
        self.show(self._total)


def _work(preparation: Preparation, workers: int, totals: _Totals) -> None:
    """Run workers until all units are finished.

    One worker that ends well is enough: it has waited for the units of all, and another may be stopped. One that is killed is
    replaced. Raises the error of a worker, or ChildProcessError if workers die again and again.
    """
    corpus = replace(preparation.corpus, tokenizer=None)  # the folder has the tokenizer
    num_threads = max(1, (os.cpu_count() or 1) // workers)
    folder = preparation.folder
    arguments = corpus, folder.output, folder.timeouts, preparation.task, num_threads, given()
    warnings: set[str] = set()  # that were shown: several workers may wait for the same
    # deaths since a unit was last done
    num_deaths = 0
    num_done = preparation.num_done()
    with WorkerPool(run_worker, arguments, workers) as pool:
        for message in pool.messages():
            if isinstance(message, Exception):
                raise message
            if isinstance(message, Death):
                num_before = num_done
                num_done = preparation.num_done()
                num_deaths = num_deaths + 1 if num_done == num_before else 1
                _replace(pool, preparation, message, num_deaths)
            elif isinstance(message, str):
                if message not in warnings:
                    preparation.warn(message)
                warnings.add(message)
            else:
                totals.add(*message)


def _replace(pool: "WorkerPool", preparation: Preparation, death: "Death", num_deaths: int) -> None:
    """Start another worker instead of one that has died, whose units are free at once.

    Raises ChildProcessError if it is the last of MAX_DEATHS in a row.
    """
    units = [str(preparation.units[number]) for number in preparation.folder.release(death.pid)]
    where = f"a worker (process {death.pid}) {death.how}{' in ' if units else ''}{', '.join(units)}, possibly out of memory"
    if num_deaths == MAX_DEATHS:
        raise ChildProcessError(
            f"{where}, the last of {num_deaths} without a finished unit in between: try fewer --workers, or check the file. "
            "Rerun the same command to resume"
        )
    preparation.warn(f"{where}: another one takes over its work")
    pool.start()


class Death(NamedTuple):
    """A process that did not end well.

    Attributes:
        pid: Its number.
        how: Its signal or exit status, in words.
    """

    pid: int
    how: str


class WorkerPool:
    """Processes that run one function. None is left when the `with` block ends.

    Each has a connection of its own: a queue that all share stays locked when one is killed while it holds the lock.

    Args:
        target: Called in each process with the connection for its messages and `arguments`.
        arguments: Further arguments.
        num_workers: Number of processes.
    """

    def __init__(self, target: Callable[..., None], arguments: tuple[Any, ...], num_workers: int) -> None:
        self._context = multiprocessing.get_context("spawn")  # a fork would take along locks of this process's threads
        self._target = target
        self._arguments = arguments
        self._num_workers = num_workers
        self._workers: dict[BaseProcess, Connection] = {}

    def __enter__(self) -> Self:
        for _ in range(self._num_workers):
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._workers:
            process.kill()  # SIGTERM waits while a process is stopped
        for process in self._workers:
            process.join()

    def start(self) -> None:
        """Start one more process."""
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=self._target, args=(sender, *self._arguments))
        self._workers[process] = receiver
        with safe_start():
            process.start()
        sender.close()

    def messages(self) -> Iterator[Any]:
        """Messages of all processes, and a `Death` for each that did not end well, until one ends well."""
        while True:
            open_connections = [connection for connection in self._workers.values() if not connection.closed]
            ready = wait([*open_connections, *(process.sentinel for process in self._workers)])
            for process, connection in list(self._workers.items()):
                yield from _received(connection)
                if process.sentinel not in ready:
                    continue
                yield from _received(connection)  # sent before it ended
                process.join()
                if process.exitcode == 0:
                    return
                del self._workers[process]
                yield Death(process.pid or 0, _describe(process.exitcode or 0))


def _received(connection: Connection) -> Iterator[Any]:
    """The messages that wait; the connection is closed after the last one of a process that has ended."""
    try:
        while not connection.closed and connection.poll():
            yield connection.recv()
    except (EOFError, OSError):
        connection.close()


def _describe(exit_code: int) -> str:
    return f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with status {exit_code}"


def run_worker(
    connection: Connection,
    corpus: Corpus,
    output: Path,
    timeouts: LeaseTimeouts,
    task: Task,
    num_threads: int,
    imports: Sequence[str],
) -> None:
    """Prepare units until all are finished, by whichever process.

    Args:
        connection: Gets reports of progress, warnings, and the exception that ends the work, if one does.
        corpus: The corpus, without its tokenizer, which the folder has.
        output: Folder of the result.
        timeouts: Timeouts of leases.
        task: Share of this machine.
        num_threads: Number of threads of a tokenizer.
        imports: Modules to import first.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command, which ends its workers
    end_with_parent()
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # of the `tokenizers` library, which reads it when it first encodes
    folder = PartialFolder(output, timeouts)
    try:
        for module in imports:
            import_given(module)
        plan = folder.plan()
        if plan is None:
            return  # another command has finished it
        tokenizer = folder.tokenizer(plan)
        if corpus.plan(plan.units, tokenizer).rules != plan.rules:
            raise UserError("files or folders of `rule` have changed since the command began: do so only when it has ended")
        tokenizer.num_threads = num_threads
        fast = fast_tokenizer(tokenizer, connection.send)
        preparation = Preparation(corpus, folder, plan.units, connection.send, task)
        preparation.work(tokenizer, fast, lambda *report: connection.send(report))
    except (UserError, OSError) as error:
        name_path(error, folder.path)
        connection.send(next(kind for kind in (PathError, UserError, OSError) if isinstance(error, kind))(str(error)))
    except Exception:  # noqa: BLE001  # the command shows it
        connection.send(RuntimeError(f"a worker failed:\n{traceback.format_exc()}"))


def end_with_parent() -> None:
    """Let this process be killed when the one that started it ends, in any way. Finished units are on disk."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # at once, whatever this process does
    threading.Thread(target=_await_parent, name="parent", daemon=True).start()  # elsewhere, or where it has just ended


def _await_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # by a pipe that the parent holds open
    os.kill(os.getpid(), signal.SIGKILL)
