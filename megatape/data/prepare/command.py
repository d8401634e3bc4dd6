"""Prepares a corpus: starts workers, adds up their progress, and replaces those that die.

Workers are independent: each takes the next free unit.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from megatape.data.prepare.assembly import Prepared
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.preparation import Preparation, open_preparation
from megatape.data.prepare.progress import OnProgress, UnitProgress
from megatape.data.prepare.progress_totals import ProgressTotals
from megatape.data.prepare.queue.task import WHOLE, Task
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.prepare.workers.worker import WorkerJob, WorkerWarning, run_worker
from megatape.data.prepare.workers.worker_pool import Death, WorkerPool
from megatape.data.shards.index import load_index
from megatape.data.tokenizers.fast import fast_tokenizer
from megatape.errors import UserError, flag, path_errors
from megatape.imports import given
from megatape.reliability.lease import LeaseTimeouts
from megatape.utils.files.atomic import check_absent
from megatape.utils.files.full_disk import name_path

# The command gives up after this many worker deaths in a row without a finished unit.
MAX_DEATHS = 4


@path_errors()
def prepare(
    options: PreparationOptions,
    output: Path,
    *,
    workers: int = 1,
    task: Task = WHOLE,
    redo: Sequence[str] = (),
    progress: OnProgress = lambda done: None,
    timeouts: LeaseTimeouts = DEFAULT_TIMEOUTS,
) -> Prepared:
    """Prepare a corpus as the data directory `output`.

    Finished units stay after an error: the same call resumes with the others.

    Args:
        options: Documents to prepare, and how.
        output: Data directory to write.
        workers: Number of processes.
        task: This machine's share.
        redo: Files that have changed since they were read. Their units are prepared again.
        progress: Called repeatedly with the work of this command so far. Bytes count every pass, and units finished earlier.
        timeouts: Lease timeouts.

    Returns:
        The index, and the counts of the corpus, or None if another process finalized it.

    Raises:
        FileExistsError: `output` exists.
        FileNotFoundError: An input does not exist.
        UserError: The source cannot be read, or the folder was begun with other options.
        ChildProcessError: Workers keep dying.
    """
    # Check this before hours of work for an empty split.
    if not options.source.validation and not 0 < options.validation_share < 1:
        raise UserError(f"{flag('validation_share')} is {options.validation_share}: give a share between 0 and 1, such as 0.02")
    check_absent(output)
    folder = PartialFolder(output, timeouts)
    try:
        with open_preparation(options, folder, workers=workers, redo=redo, task=task) as preparation:
            _work(preparation, workers, ProgressTotals(preparation, progress))
            return preparation.finish()
    except BaseException as error:
        if isinstance(error, OSError) and output.exists():
            # Another process has finished the preparation and removed the folder.
            return Prepared(load_index(output), None)
        name_path(error, output)
        raise


def _work(preparation: Preparation, workers: int, totals: ProgressTotals) -> None:
    """Finish all units, in this process if one is enough."""
    num_remaining = len(preparation.units) - len(totals.finished)
    num_workers = min(workers, num_remaining)
    if num_workers > 1:
        _run_workers(preparation, num_workers, totals)
        return
    tokenizer = preparation.folder.tokenizer(preparation.plan)
    fast = None
    if num_remaining:
        fast = fast_tokenizer(tokenizer, preparation.warn)
    preparation.work(tokenizer, fast, totals.add)


def _run_workers(preparation: Preparation, num_workers: int, totals: ProgressTotals) -> None:
    """Run workers until all units are finished, replacing killed ones.

    This returns when one worker ends without an error: that worker has waited for all units, and another one may be stopped.

    Raises:
        ChildProcessError: Workers keep dying.
        Exception: A worker failed.
    """
    folder = preparation.folder
    num_cores = os.cpu_count() or 1
    job = WorkerJob(
        # Workers load the tokenizer from the folder.
        options=replace(preparation.options, tokenizer=None),
        output=folder.output,
        timeouts=folder.leases.timeouts,
        task=preparation.task,
        num_threads=max(1, num_cores // num_workers),
        imports=given(),
    )
    # Several workers may warn about the same process. Show each warning once.
    shown_warnings: set[str] = set()
    with WorkerPool(run_worker, (job,), num_workers) as pool:
        replacer = _WorkerReplacer(preparation, pool)
        for message in pool.messages():
            match message:
                case UnitProgress():
                    totals.add(message)
                case WorkerWarning(text):
                    if text not in shown_warnings:
                        preparation.warn(text)
                    shown_warnings.add(text)
                case Death():
                    replacer.replace(message)
                case Exception():
                    raise message


class _WorkerReplacer:
    """Replaces dead workers until MAX_DEATHS of them have died in a row without finishing a unit."""

    def __init__(self, preparation: Preparation, pool: WorkerPool) -> None:
        self._preparation = preparation
        self._pool = pool
        # Deaths since a unit was last finished.
        self._num_deaths = 0
        self._num_done = preparation.num_done()

    def replace(self, death: Death) -> None:
        """Release the units of a dead worker, and start another one.

        Raises:
            ChildProcessError: MAX_DEATHS workers have died in a row.
        """
        num_done = self._preparation.num_done()
        if num_done != self._num_done:
            self._num_done = num_done
            self._num_deaths = 0
        self._num_deaths += 1

        leases = self._preparation.folder.leases
        units = [str(self._preparation.units[number]) for number in leases.release_dead(death.pid)]
        description = f"a worker (process {death.pid}) {death.how}"
        if units:
            description += f" in {', '.join(units)}"
        description += ", possibly out of memory"
        if self._num_deaths == MAX_DEATHS:
            raise ChildProcessError(
                f"{description}, the last of {self._num_deaths} without a finished unit in between: try fewer workers, or "
                "check the file. Rerun the same command to resume"
            )
        self._preparation.warn(f"{description}: another one takes over its work")
        self._pool.start_worker()
