"""A preparation, run by any number of processes and machines. Each may be killed at any moment.

The plan divides the source into units. Processes lease units and run passes over them (unit_passes.py), and the folder keeps
the results (folder.py). Source and options alone decide the data, regardless of which process does which part, when and how
often.
"""

import logging
import time
from collections.abc import Callable, Sequence

from megatape.data.prepare.assembly import Prepared, finish
from megatape.data.prepare.decision_pass import DecisionPass
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.folder_leases import ASSEMBLY, COMPARISON, FIRST_PASS, NEAR_DECISION
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.plan import Plan
from megatape.data.prepare.planner import Planner
from megatape.data.prepare.progress import OnUnitProgress
from megatape.data.prepare.task import WHOLE, Task
from megatape.data.prepare.unit_passes import UnitPasses
from megatape.data.prepare.work_queue import Step, WorkQueue
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.fast import FastTokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer

LOG = logging.getLogger(__name__)


class Preparation:
    """A preparation in a folder, as one of its processes sees it.

    Attributes:
        options: What to prepare, and how. `start` sets the unit size.
        folder: Unfinished preparation.
        units: All units of the source. `start` replaces them by the plan's.
        warn: Shows a line to the user.
        task: This machine's share, done before other work.
        queue: Leases work for this process.
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

    def start(self, workers: int = 1, redo: Sequence[str] = ()) -> Plan:
        """Store the plan of this process's options, or resume with a stored one.

        Args:
            workers: Number of processes. It decides the unit size unless the user or a stored plan does.
            redo: Files that have changed since they were read, to prepare their units again.

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
        """Run the passes over units that nobody else is working on, until all are finished.

        Args:
            tokenizer: Tokenizer for the data.
            fast: Faster tokenizer with the same ids, or None.
            on_progress: Called repeatedly.
        """
        passes = UnitPasses(self.options, self.folder, self.units, tokenizer, fast, on_progress)
        decisions = DecisionPass(self.options.cleaning, self.folder, len(self.units))
        num_units = len(self.units)
        steps = []
        if self.num_passes > 1 and len(self.finished()) < num_units:
            steps += [
                Step(FIRST_PASS, num_units, self.units_after_first_pass, passes.first_pass),
                Step(COMPARISON, decisions.num_comparisons, decisions.compared, decisions.compare),
                Step(NEAR_DECISION, decisions.num_near_steps, decisions.decided_near, decisions.decide_near),
            ]
        steps.append(Step(None, num_units, self.finished, passes.write_pass))
        for step in steps:
            for pause in self.queue.run(step):
                time.sleep(pause)

    @property
    def num_passes(self) -> int:
        """Number of passes over a unit: the write pass, preceded by a first pass if documents are compared across units."""
        if self.options.cleaning.compares_units(len(self.units)):
            return 2
        return 1

    def finish(self, plan: Plan) -> Prepared:
        """Assemble the data directory. All units must be finished."""
        while True:
            with self.folder.leases.hold(ASSEMBLY) as lease:
                if lease is not None:
                    return finish(self.folder, self.options.source, plan, lease.heartbeat)
            time.sleep(self.queue.pause(ASSEMBLY))

    def abandon(self) -> None:
        """Remove the folder if this process created it and it has no finished work."""
        if self._created and not self.units_after_first_pass() and not self.folder.leases.leased():
            self.folder.remove()

    def finished(self) -> set[int]:
        return self.folder.finished(len(self.units))

    def num_done(self) -> int:
        """Return the number of finished passes, counting two for a finished unit."""
        finished = self.finished()
        return 2 * len(finished) + len(self.folder.first_passes() - finished)

    def units_after_first_pass(self) -> set[int]:
        return self.finished() | self.folder.first_passes()
