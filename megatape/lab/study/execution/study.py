"""Study that trains models: its folder, the pool executing its runs, and the failures so far."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from megatape.lab.processes import interruptible
from megatape.lab.study.execution.lock import locked_study
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.run import Run, RunsFailed
from megatape.utils.text.paragraphs import Show
from megatape.utils.text.units import plural


class Execution:
    """Executes the runs of a study while its folder is locked, and remembers failed runs.

    Args:
        pool: Pool executing the runs.
        output: Study folder.
        lock: Folder lock, for child processes to inherit.
        show: Called with progress messages.
    """

    def __init__(self, pool: RunPool, output: Path, lock: IO[bytes], show: Show) -> None:
        self._pool = pool
        self._output = output
        self._lock = lock
        self._show = show
        self._num_runs = 0
        self._errors: list[str] = []

    def finish(self, runs: Sequence[Run[Any]]) -> None:
        """Execute the unfinished runs. An exception, such as a KeyboardInterrupt, stops them.

        Raises:
            UserError: A folder holds a run with other settings or other data. No run has started.
        """
        self._num_runs += len(runs)
        self._errors += self._pool.finish(runs, self._output, self._lock, self._show)

    def raise_failures(self) -> None:
        """Raise RunsFailed if some runs failed."""
        if self._errors:
            total = plural(self._num_runs, "run")
            errors = "\n".join(self._errors)
            raise RunsFailed(f"{len(self._errors)} of {total} failed; the table has the others\n{errors}")


@dataclass(frozen=True)
class Study:
    """Folder and resources of a study.

    Attributes:
        output: Folder for runs and tables.
        pool: Pool executing the runs.
        command: The user's command line, for the tables.
        show: Called with progress messages, then with the tables.
    """

    output: Path
    pool: RunPool
    command: str
    show: Show

    @contextmanager
    def begin(self, locked_folder: Path | None = None) -> Iterator[Execution]:
        """Lock a folder for a block in which SIGINT and SIGTERM raise KeyboardInterrupt.

        Args:
            locked_folder: Folder to lock. None for the study's folder.

        Raises:
            UserError: Another process holds the lock.
        """
        with interruptible(), locked_study(locked_folder or self.output) as lock:
            yield Execution(self.pool, self.output, lock, self.show)
