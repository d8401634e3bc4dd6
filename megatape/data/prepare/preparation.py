"""A preparation, run by any number of processes and machines. Each may be killed at any moment.

The plan divides the source into units. Processes lease units and run passes over them (passes/), and the folder keeps the
results (shared_folder/). Source and options alone decide the data, regardless of which process does which part, when and how
often.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from megatape.data.prepare.assembly import Prepared, finish
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.passes.decision_pass import DecisionPass
from megatape.data.prepare.passes.reference_pass import ReferencePass
from megatape.data.prepare.passes.unit_passes import UnitPasses
from megatape.data.prepare.planning.planner import Planner
from megatape.data.prepare.progress import OnUnitProgress
from megatape.data.prepare.queue.task import WHOLE, Task
from megatape.data.prepare.queue.work_queue import Step, WorkQueue
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.folder_leases import ASSEMBLY, FIRST_PASS
from megatape.data.prepare.shared_folder.plan import Plan
from megatape.data.tokenizers.fast import FastTokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer

LOG = logging.getLogger(__name__)


class Preparation:
    """A preparation in a folder, as one of its processes sees it. `open_preparation` returns that of a command.

    Args:
        options: Options of the preparation, including the unit size.
        folder: Unfinished preparation, where the plan is stored.
        plan: The stored plan.
        warn: Shows a line to the user.
        task: This machine's share, done before other work.
        queue: Leases work for this process. None: a new one.

    Attributes:
        units: All units of the source.
        queue: Leases work for this process.
    """

    def __init__(
        self,
        options: PreparationOptions,
        folder: PartialFolder,
        plan: Plan,
        warn: Callable[[str], None] = LOG.warning,
        task: Task = WHOLE,
        queue: WorkQueue | None = None,
    ) -> None:
        self.options = options
        self.folder = folder
        self.plan = plan
        self.units = plan.units
        self.warn = warn
        self.task = task
        self.queue = queue or WorkQueue(folder.leases, task, warn)

    def work(self, tokenizer: Tokenizer, fast: FastTokenizer | None, on_progress: OnUnitProgress) -> None:
        """Run the passes over units that nobody else is working on, until all are finished.

        Args:
            tokenizer: Tokenizer for the data.
            fast: Faster tokenizer with the same ids, or None.
            on_progress: Called repeatedly.
        """
        passes = UnitPasses(self.options, self.folder, self.plan, tokenizer, fast, on_progress)
        num_units = len(self.units)
        near = self.options.cleaning.near_duplicates
        if self.num_passes > 1 and len(self.finished()) < num_units:
            self._run(Step(FIRST_PASS, num_units, self.units_after_first_pass, self.folder.has_first_pass, passes.first_pass))
            num_references = 0
            if near is not None and near.reference_source is not None:
                reference_pass = ReferencePass(near, near.reference_source.units(), self.folder)
                self._run(reference_pass.step())
                num_references = len(reference_pass.units)
            decisions = DecisionPass(
                self.options.cleaning, self.folder, num_units, self.options.comparison_bytes, num_references
            )
            self._run(decisions.division())
            for step in decisions.later_steps():
                self._run(step)
        self._run(Step(None, num_units, self.finished, self.folder.is_finished, passes.write_pass))

    def _run(self, step: Step) -> None:
        for pause in self.queue.run(step):
            time.sleep(pause)

    @property
    def num_passes(self) -> int:
        """Number of passes over a unit: the write pass, preceded by a first pass if documents are compared across units."""
        if self.plan.compares_units:
            return 2
        return 1

    def finish(self) -> Prepared:
        """Assemble the data directory. All units must be finished."""
        while True:
            with self.folder.leases.hold(ASSEMBLY) as lease:
                if lease is not None:
                    return finish(self.folder, self.options.source, self.plan, lease.heartbeat)
            time.sleep(self.queue.pause(ASSEMBLY))

    def finished(self) -> set[int]:
        return self.folder.finished(len(self.units))

    def num_done(self) -> int:
        """Return the number of finished passes, counting two for a finished unit."""
        finished = self.finished()
        return 2 * len(finished) + len(self.folder.first_passes() - finished)

    def units_after_first_pass(self) -> set[int]:
        return self.finished() | self.folder.first_passes()


@contextmanager
def open_preparation(
    options: PreparationOptions,
    folder: PartialFolder,
    *,
    workers: int = 1,
    redo: Sequence[str] = (),
    warn: Callable[[str], None] = LOG.warning,
    task: Task = WHOLE,
) -> Iterator[Preparation]:
    """Begin a preparation, or resume the one in the folder. After an error, remove a new folder without finished work.

    Args:
        options: Options of the preparation.
        folder: Unfinished preparation, which may not exist.
        workers: Number of processes. It decides the unit size unless the user or a stored plan does.
        redo: Files that have changed since they were read, to prepare their units again.
        warn: Shows a line to the user.
        task: This machine's share, done before other work.

    Yields:
        The preparation, whose plan is stored.

    Raises:
        UserError: The stored plan differs from the options.
    """
    units = options.source.units()
    queue = WorkQueue(folder.leases, task, warn)
    planner = Planner(options, units, folder, queue, warn)
    is_new = folder.create()
    try:
        plan, options_with_size = planner.agree(workers, redo)
        yield Preparation(options_with_size, folder, plan, warn, task, queue)
    except BaseException:
        if is_new and not folder.has_finished_work():
            folder.remove()
        raise
