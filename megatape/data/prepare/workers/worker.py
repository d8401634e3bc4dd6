"""A worker process of a command that prepares a corpus."""

import os
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.preparation import Preparation
from megatape.data.prepare.queue.task import Task
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.workers.worker_pool import kill_with_pool
from megatape.data.tokenizers.fast import fast_tokenizer
from megatape.errors import PathError, UserError, flag, marked_message
from megatape.imports import import_given
from megatape.reliability.lease import LeaseTimeouts
from megatape.utils.files.full_disk import name_path


@dataclass(frozen=True)
class WorkerJob:
    """Work of a worker process.

    Attributes:
        options: Options of the preparation. The tokenizer is None: workers load it from the folder.
        output: Data directory to prepare.
        timeouts: Lease timeouts.
        task: This machine's share.
        num_threads: Threads per tokenizer.
        imports: Modules to import first.
    """

    options: PreparationOptions
    output: Path
    timeouts: LeaseTimeouts
    task: Task
    num_threads: int
    imports: Sequence[str]


@dataclass(frozen=True)
class WorkerWarning:
    """Message of a worker to the user."""

    text: str


def run_worker(connection: Connection, job: WorkerJob) -> None:
    """Prepare units that nobody else is working on, until all are finished.

    Args:
        connection: Receives UnitProgress, WorkerWarning, and the exception that ends the work.
        job: Work of this process.
    """
    # Ctrl-C also reaches the command, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kill_with_pool()
    # The library `tokenizers` reads this variable when it first encodes.
    os.environ["RAYON_NUM_THREADS"] = str(job.num_threads)
    folder = PartialFolder(job.output, job.timeouts)
    try:
        _work(connection, job, folder)
    except (UserError, OSError) as error:
        name_path(error, folder.path)
        connection.send(_sendable(error))
    except Exception:  # noqa: BLE001  # The command shows the error.
        connection.send(RuntimeError(f"a worker failed:\n{traceback.format_exc()}"))


def _work(connection: Connection, job: WorkerJob, folder: PartialFolder) -> None:
    def warn(text: str) -> None:
        connection.send(WorkerWarning(text))

    for module in job.imports:
        import_given(module)
    plan = folder.plan()
    if plan is None:
        # Another command has finished the preparation.
        return
    tokenizer = folder.tokenizer(plan)
    if job.options.plan(plan.units, tokenizer).rules != plan.rules:
        raise UserError(
            f"files or folders of {flag('rule')} have changed since the command began: do so only when it has ended"
        )
    tokenizer.num_threads = job.num_threads
    fast = fast_tokenizer(tokenizer, warn)
    preparation = Preparation(job.options, folder, plan, warn, job.task)
    preparation.work(tokenizer, fast, connection.send)


def _sendable(error: Exception) -> Exception:
    """Return an error with the same message, of a class that can be unpickled."""
    for kind in (PathError, UserError):
        if isinstance(error, kind):
            return kind(marked_message(error))
    return OSError(str(error))
