"""A preparation by any number of processes and machines. Each may be killed at any moment.

The source is divided into units. One process reads, tokenizes and writes each of them (unit_passes.py), and the folder keeps
the finished ones (folder.py). Source and options alone decide the result, whichever process does which part, when and how
often.
"""

import logging
import time
from collections.abc import Callable, Sequence

from megatape.data.prepare.assembly import Prepared, finish
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.plan import Plan
from megatape.data.prepare.planner import Planner
from megatape.data.prepare.progress import OnUnitProgress
from megatape.data.prepare.task import WHOLE, Task
from megatape.data.prepare.unit_comparisons import UnitComparisons
from megatape.data.prepare.unit_passes import UnitPasses
from megatape.data.prepare.work_queue import Step, WorkQueue
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.fast import FastTokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer

LOG = logging.getLogger(__name__)


class Preparation:
    """A preparation in a folder, as one of its processes sees it.

    Args:
        options: Options of the preparation.
        folder: Folder of the unfinished preparation.
        units: All parts of the source.
        warn: Shows a line to the user.
        task: Share of this machine. It starts with this share.

    Attributes:
        options: Options of the preparation. Once it has begun, they have the size of the units.
        folder: Folder of the unfinished preparation.
        units: All parts of the source. Once the preparation has begun, those of its plan.
        warn: Shows a line to the user.
        task: Share of this machine.
        queue: Hands out the work of this process.
    """

    def __init__(
        self,
        options: PreparationOptions,
        folder: PartialFolder,
        units: list[Unit],
        warn: Callable[[str], None] = LOG.warning,
        task: Task = WHOLE,
    ) -> None:
        self.options = options
        self.folder = folder
        self.units = units
        self.warn = warn
        self.task = task
        self.queue = WorkQueue(folder.leases, task, warn)
        # Whether this process created the folder.
        self._created = False

    def begin(self, workers: int = 1, redo: Sequence[str] = ()) -> Plan:
        """Store the plan of this process's options, or resume with a stored one.

        Args:
            workers: Number of processes. It decides the size of units unless the user or a stored plan does.
            redo: Names of files that have changed since they were read. Their units are prepared again.

        Raises:
            UserError: The two plans differ.
        """
        planner = Planner(self.options, self.units, self.folder, self.queue, self.warn)
        self._created = self.folder.create()
        plan = planner.agree(workers, redo)
        self.options = planner.options
        self.units = planner.units
        return plan

    def work(self, tokenizer: Tokenizer, fast: FastTokenizer | None, on_progress: OnUnitProgress) -> None:
        """Process units that nobody else is working on, until all are finished.

        Args:
            tokenizer: Tokenizer of the data.
            fast: Faster tokenizer with the same ids, or None.
            on_progress: Called repeatedly.
        """
        passes = UnitPasses(self.options, self.folder, self.units, tokenizer, fast, on_progress)
        comparisons = UnitComparisons(self.options.cleaning, self.folder, len(self.units))
        num_units = len(self.units)
        steps = []
        if self.num_passes > 1 and len(self.finished()) < num_units:
            steps += [
                Step("verdicts", num_units, self.units_after_first_pass, passes.decide),
                Step("compare", comparisons.num_comparisons, comparisons.compared, comparisons.compare),
                Step("near", comparisons.num_near_steps, comparisons.decided_near, comparisons.decide_near),
            ]
        steps.append(Step("", num_units, self.finished, passes.write))
        for step in steps:
            for pause in self.queue.run(step):
                time.sleep(pause)

    @property
    def num_passes(self) -> int:
        """Number of passes over a unit. The first one reads the source."""
        if self.options.cleaning.compares_units(len(self.units)):
            return 2
        return 1

    def finish(self, plan: Plan) -> Prepared:
        """Make the data directory of all units, which must be finished."""
        while True:
            with self.folder.leases.hold("finish") as lease:
                if lease is not None:
                    return finish(self.folder, self.options.source, plan, lease.heartbeat)
            time.sleep(self.queue.pause("finish"))

    def abandon(self) -> None:
        """Remove the folder if this process created it and it holds no finished work."""
        if self._created and not self.units_after_first_pass() and not self.folder.leases.held():
            self.folder.remove()

    def finished(self) -> set[int]:
        """Return the numbers of the finished units."""
        return self.folder.finished(len(self.units))

    def num_done(self) -> int:
        """Return the number of finished passes over units."""
        finished = self.finished()
        return 2 * len(finished) + len(self.folder.first_passes() - finished)

    def units_after_first_pass(self) -> set[int]:
        """Return the numbers of the units whose first pass is done."""
        return self.finished() | self.folder.first_passes()
