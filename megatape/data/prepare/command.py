"""The processes of one command that prepares a corpus.

They do not need each other: each takes the next unit that is free. The command's own process adds up
their progress and watches.
"""

import multiprocessing
import os
import queue
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from megatape.data.prepare.corpus import Corpus
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.preparation import Preparation
from megatape.data.prepare.unit import Progress
from megatape.data.prepare.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.shards.index import Index, load_index
from megatape.data.shards.writer import check_share
from megatape.data.sources.source import CorpusCounts
from megatape.data.tokenizers.fast import FastTokenizer, fast_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import PathError, UserError, path_errors
from megatape.files import check_absent
from megatape.imports import given, import_given
from megatape.runtime.lease import LeaseTimeouts

REPORTS = 0.5  # seconds between the reports of a worker
POLL = 0.2  # seconds between looks at workers that report nothing


@path_errors()
def prepare(
    corpus: Corpus,
    output: Path,
    *,
    workers: int = 1,
    progress: Callable[[Progress], None] = lambda done: None,
    timeouts: LeaseTimeouts = DEFAULT_TIMEOUTS,
) -> tuple[Index, CorpusCounts | None]:
    """Prepare `corpus` as the data directory `output`, or several in it.

    Finished units stay after an error: the same call resumes with the others.

    Args:
        corpus: The corpus.
        output: Folder to write.
        workers: Number of processes.
        progress: Called again and again with the work of this command so far. Bytes are of all passes, units that were finished
            before included.
        timeouts: Timeouts of leases.

    Returns:
        The index, of several the first, and the counts of the corpus, or None if another process finalized it.

    Raises:
        FileExistsError: `output` exists.
        FileNotFoundError: An input does not exist.
        UserError: The source cannot be read, or something else was begun there.
        ChildProcessError: A worker was killed.
    """
    if not corpus.source.validation:
        check_share(corpus.validation_share)
    check_absent(output)
    names = tuple(corpus.tokenizers) or ("",)
    preparation = Preparation(corpus, PartialFolder(output, timeouts, names), corpus.source.units())
    try:
        plan = preparation.begin()
        totals = _Totals(preparation, progress)
        tokenizers = preparation.folder.tokenizers(plan)
        left = len(preparation.units) - len(totals.finished)
        fast = fast_tokenizers(tokenizers) if left else {}
        if min(workers, left) > 1:
            _work(preparation, min(workers, left), totals)
        preparation.work(tokenizers, fast, totals.add)
        return preparation.finish(plan)
    except BaseException as error:
        if isinstance(error, OSError) and output.exists():  # finished by another process, which has removed the folder
            return load_index(output / names[0]), None
        preparation.abandon()
        raise


class _Totals:
    """Sums the progress that is reported of units, again and again."""

    def __init__(self, preparation: Preparation, show: Callable[[Progress], None]) -> None:
        units = preparation.units
        self.show, self.finished = show, preparation.finished()  # before this command
        self._total_bytes = sum(unit.num_bytes for unit in units) * preparation.num_passes
        self._before = Progress(sum(units[number].num_bytes for number in self.finished) * preparation.num_passes)
        self._reports: dict[tuple[int, str], Progress] = {}

    def add(self, number: int, name: str, progress: Progress) -> None:
        """A unit's report of one pass."""
        self._reports[number, name] = progress
        total = Progress(*map(sum, zip(self._before, *self._reports.values(), strict=True)))
        self.show(total._replace(total_bytes=self._total_bytes))


def _work(preparation: Preparation, workers: int, totals: _Totals) -> None:
    """Run workers until all units are finished.

    One worker that ends well is enough: it has waited for the units of all, and another may be stopped. No worker is left.
    Raises the error of a worker, or ChildProcessError for one that was killed.
    """
    context = multiprocessing.get_context("spawn")  # a fork would take along locks of this process's threads
    reports: Any = context.Queue()
    corpus = replace(preparation.corpus, tokenizer=None)  # the folder has the tokenizers
    arguments = corpus, preparation.folder.output, preparation.folder.timeouts, _threads(workers), reports, given()
    processes = [context.Process(target=_worker, args=arguments) for _ in range(workers)]
    for process in processes:
        process.start()
    warnings: set[str] = set()  # that were shown: several workers may wait for the same
    try:
        while True:
            done = any(process.exitcode == 0 for process in processes)
            try:
                message = reports.get(timeout=POLL)
            except queue.Empty:
                _check_alive(processes)
                if done:
                    return
                continue
            if isinstance(message, Exception):
                raise message
            if isinstance(message, str):
                if message not in warnings:
                    preparation.warn(message)
                warnings.add(message)
                continue
            totals.add(*message)
    finally:
        for process in processes:
            process.kill()  # SIGTERM waits while a process is stopped
        for process in processes:
            process.join()


def _check_alive(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.exitcode:
            signal_number = -process.exitcode
            how = f"killed by {signal.Signals(signal_number).name}" if signal_number > 0 else f"ended ({process.exitcode})"
            raise ChildProcessError(
                f"a worker (process {process.pid}) was {how}, possibly out of memory: try fewer --workers. Rerun the same "
                "command to resume"
            )


def fast_tokenizers(tokenizers: Mapping[str, Tokenizer], warn: bool = True) -> dict[str, FastTokenizer]:
    """Faster tokenizers with the same ids, where there are any. warn: say where there is none."""
    return {name: fast for name, tokenizer in tokenizers.items() if (fast := fast_tokenizer(tokenizer, warn))}


def _threads(workers: int) -> int:
    return max(1, (os.cpu_count() or 1) // workers)


def _worker(
    corpus: Corpus, output: Path, timeouts: LeaseTimeouts, num_threads: int, reports: Any, imports: Sequence[str]
) -> None:
    """A process that prepares units. Puts its reports into the queue, and the exception that ends it, if one does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command, which ends its workers
    parent, last = os.getppid(), 0.0

    def report(number: int, name: str, progress: Progress) -> None:
        nonlocal last
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # the parent is gone; finished units are on disk
        if time.monotonic() - last > REPORTS:
            last = time.monotonic()
            reports.put((number, name, progress))

    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # of the `tokenizers` library, which reads it when it first encodes
    try:
        for module in imports:
            import_given(module)
        plan = PartialFolder(output, timeouts).plan()
        if plan is None:
            return  # another command has finished it
        folder = PartialFolder(output, timeouts, tuple(plan.tokenizers))
        tokenizers = folder.tokenizers(plan)
        for tokenizer in tokenizers.values():
            tokenizer.num_threads = num_threads
        fast = fast_tokenizers(tokenizers, warn=False)  # the command has warned
        Preparation(corpus, folder, plan.units, reports.put).work(tokenizers, fast, report)
    except (UserError, OSError) as error:
        reports.put(next(kind for kind in (PathError, UserError, OSError) if isinstance(error, kind))(str(error)))
    except Exception:  # noqa: BLE001  # the command shows it
        reports.put(RuntimeError(f"a worker failed:\n{traceback.format_exc()}"))
