"""The processes of one command that prepares a corpus, and what they have done so far.

They do not need each other: each takes the next unit that is free. The command's own process only adds up and watches.
"""

import multiprocessing
import os
import queue
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from megatape.data.prepare.documents import check_share
from megatape.data.prepare.partial import PartialFolder
from megatape.data.prepare.unit_lease import USUAL, Patience
from megatape.data.prepare.worker import LAST, Corpus, Preparation
from megatape.data.shards.index import Index, load_index
from megatape.data.sources.source import CorpusCounts
from megatape.errors import PathError, UserError, path_errors
from megatape.files import check_absent
from megatape.imports import given, import_given

REPORTS = 0.5  # seconds between the reports of a worker
POLL = 0.2  # seconds between looks at workers that report nothing


@dataclass
class Progress:
    """What a command has done so far.

    read_bytes, total_bytes: of the source's files as they are stored, in all passes, 0 if unknown; what was finished before
    counts as read. documents, text_bytes, tokens: of this command's own work.
    """

    total_bytes: int
    read_bytes: int = 0
    documents: int = 0
    text_bytes: int = 0
    tokens: int = 0


@path_errors()
def prepare(
    corpus: Corpus,
    output: Path,
    *,
    workers: int = 1,
    progress: Callable[[Progress], None] = lambda done: None,
    patience: Patience = USUAL,
) -> tuple[Index, CorpusCounts | None]:
    """Prepare `corpus` as the data directory `output`, or several in it.

    Returns the index, of several the first, and what was counted, unless another process has summed that up.

    Raises FileExistsError if `output` exists, FileNotFoundError or UserError if the source cannot be read or something else was
    begun there, ChildProcessError if a worker was killed. What is finished stays: the same call goes on with the rest.
    """
    if not corpus.source.validation:
        check_share(corpus.validation_share)
    check_absent(output)
    names = tuple(corpus.tokenizers) or ("",)
    preparation = Preparation(corpus, PartialFolder(output, patience, names), corpus.source.units())
    try:
        plan = preparation.begin()
        totals = _Totals(preparation, progress)
        tokenizers = preparation.folder.tokenizers(plan)
        if left := len(preparation.units) - len(preparation.finished()):
            preparation.hasten(tokenizers)
        if min(workers, left) > 1:
            _work(preparation, min(workers, left), totals)
        preparation.work(tokenizers, totals.add)
        return preparation.finish(plan)
    except BaseException as error:
        if isinstance(error, OSError) and output.exists():  # finished by another process, which has removed the folder
            return load_index(output / names[0]), None
        preparation.abandon()
        raise


class _Totals:
    """Adds up what units report of themselves, again and again."""

    def __init__(self, preparation: Preparation, progress: Callable[[Progress], None]) -> None:
        self.show, self.units, self.num_passes = progress, preparation.units, preparation.num_passes
        self.finished = preparation.finished()  # before this command
        self.reports: dict[tuple[int, str], tuple[CorpusCounts, int]] = {}

    def add(self, number: int, name: str, counts: CorpusCounts, tokens: int) -> None:
        """A unit's report of one pass."""
        self.reports[number, name] = counts, tokens
        before = sum(self.units[number].num_bytes for number in self.finished) * self.num_passes
        written = [report for (_, name), report in self.reports.items() if name == LAST]
        self.show(
            Progress(
                total_bytes=sum(unit.num_bytes for unit in self.units) * self.num_passes,
                read_bytes=before + sum(counts.read_bytes for counts, _ in self.reports.values()),
                documents=sum(counts.documents for counts, _ in written),
                text_bytes=sum(counts.text_bytes for counts, _ in written),
                tokens=sum(tokens for _, tokens in written),
            )
        )


def _work(preparation: Preparation, workers: int, totals: _Totals) -> None:
    """Run workers until all units are finished.

    One that has ended well is enough: it has waited for the units of all, and another may be stopped. Raises what a worker
    raised, or ChildProcessError for one that was killed. No worker is left.
    """
    context = multiprocessing.get_context("spawn")  # a fork would take along locks of this process's threads
    reports: Any = context.Queue()
    corpus = replace(preparation.corpus, tokenizer=None, several={})  # the folder has them
    arguments = corpus, preparation.folder.output, preparation.folder.patience, _threads(workers), reports, given()
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
                f"a worker (process {process.pid}) was {how}, for want of memory perhaps: then give fewer --workers. The same "
                "command goes on with what is not finished"
            )


def _threads(workers: int) -> int:
    return max(1, (os.cpu_count() or 1) // workers)


def _worker(corpus: Corpus, output: Path, patience: Patience, num_threads: int, reports: Any, imports: Sequence[str]) -> None:
    """A process that prepares units. Puts its reports into the queue, and the exception that ends it, if one does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command, which ends its workers
    parent, last = os.getppid(), 0.0

    def report(number: int, name: str, counts: CorpusCounts, tokens: int) -> None:
        nonlocal last
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # nobody is left to report to, and what is finished is safe
        if time.monotonic() - last > REPORTS:
            last = time.monotonic()
            reports.put((number, name, counts, tokens))

    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # of the `tokenizers` library, which reads it when it first encodes
    try:
        for module in imports:
            import_given(module)
        plan = PartialFolder(output, patience).plan()
        if plan is None:
            return  # another command has finished meanwhile
        folder = PartialFolder(output, patience, tuple(plan.tokenizers))
        tokenizers = folder.tokenizers(plan)
        for tokenizer in tokenizers.values():
            tokenizer.num_threads = num_threads
        preparation = Preparation(corpus, folder, plan.units, reports.put)
        preparation.hasten(tokenizers, warn=False)  # the command has
        preparation.work(tokenizers, report)
    except (UserError, OSError) as error:
        reports.put(next(kind for kind in (PathError, UserError, OSError) if isinstance(error, kind))(str(error)))
    except Exception:  # noqa: BLE001  # whatever it is, the command must tell it
        reports.put(RuntimeError(f"a worker failed:\n{traceback.format_exc()}"))
