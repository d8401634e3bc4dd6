"""A preparation by any number of processes and machines. Each may be killed at any moment.

The source is divided into units. One process reads, tokenizes and writes each of them (unit_passes.py), and the folder keeps
the finished ones (folder.py). Source and options alone decide the result, whichever process does which part, when and how
often.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from megatape.data.prepare.assembly import Prepared, finish
from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.plan import Plan, files_of
from megatape.data.prepare.progress import OnUnitProgress
from megatape.data.prepare.redo import discard_changed
from megatape.data.prepare.task import WHOLE, Task
from megatape.data.prepare.training_sample import sample_texts
from megatape.data.prepare.unit_comparisons import UnitComparisons
from megatape.data.prepare.unit_lease import UnitLease
from megatape.data.prepare.unit_passes import UnitPasses
from megatape.data.prepare.work_queue import WorkQueue
from megatape.data.sources.units import UNIT_BYTES, Unit, default_unit_bytes
from megatape.data.tokenizers.fast import FastTokenizer
from megatape.data.tokenizers.sentencepiece import MAX_TRAINING_BYTES, SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError

LOG = logging.getLogger(__name__)

# Maximum number of changed files named in an error.
NUM_SHOWN = 3


class Preparation:
    """A preparation in a folder, as one of its processes sees it.

    Args:
        options: Options of the preparation.
        folder: Folder of the unfinished preparation.
        units: All parts of the source.
        warn: Shows a line to the user.
        task: Share of this machine. It starts with this share.

    Attributes:
        created: Whether this process created the folder.
    """

    created = False

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

    def begin(self, workers: int = 1, redo: Sequence[str] = ()) -> Plan:
        """Store the plan of this process's options, or resume with a stored one.

        Args:
            workers: Number of processes. It decides the size of units unless the user or a stored plan does.
            redo: Names of files that have changed since they were read. Their units are prepared again.

        Raises:
            UserError: The two plans differ.
        """
        folder = self.folder
        skipped = self.options.source.skipped_files()
        self.created = folder.create()
        while True:
            plan = folder.plan()
            if plan is not None:
                break
            with folder.leases.hold("plan") as lease:
                if lease is not None and folder.plan() is None:
                    num_bytes = sum(unit.num_bytes for unit in self.units)
                    self._divide(default_unit_bytes(num_bytes, workers))
                    tokenizer = self.options.tokenizer or self._train(lease)
                    folder.begin(self.options.plan(self.units, tokenizer, skipped), tokenizer)
                    continue
            time.sleep(self.queue.pause("plan"))

        self._divide(plan.unit_bytes)
        tokenizer = self.options.tokenizer or folder.tokenizer(plan)
        if redo:
            plan = discard_changed(folder, self.options, plan, redo, self.warn)
        self.units = self._divided_as(plan)
        wanted = self.options.plan(self.units, tokenizer, skipped)
        self._check_same(plan, wanted)
        if plan != wanted:
            folder.begin(wanted, tokenizer)
        return wanted

    def _check_same(self, plan: Plan, wanted: Plan) -> None:
        difference = plan.difference(wanted, self.units_after_first_pass())
        if difference is None:
            return
        message = f"{self.folder.path} was begun with other {difference}. Give the same inputs and options to resume"
        changed = plan.changed_files(wanted)
        if changed:
            message += f", add `redo` {' '.join(changed[:NUM_SHOWN])} to prepare the changed files again"
        raise UserError(f"{message}, or remove it to begin again")

    def _divided_as(self, plan: Plan) -> list[Unit]:
        """Return the units of a stored plan with present file sizes. If its files differ, return this process's units."""
        mine = files_of(self.units)
        its = files_of(plan.units)
        known = all(unit.versions for unit in (*self.units, *plan.units))
        if not known or mine.keys() != its.keys() or plan.unit_bytes != self.options.unit_bytes:
            return self.units
        changed = {name for name, version in mine.items() if its[name] != version}
        if not changed:
            return plan.units
        with_present_files, _ = plan.with_present_files(changed)
        return with_present_files.units

    def _divide(self, unit_bytes: int) -> None:
        """Divide the source into units of this size, unless their size is known."""
        source = self.options.source
        if source.unit_bytes is None:
            self.options = replace(self.options, source=replace(source, unit_bytes=unit_bytes))
            if unit_bytes != UNIT_BYTES:
                self.units = self.options.source.units()

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
        steps: list[Iterator[float]] = []
        if self.num_passes > 1 and len(self.finished()) < num_units:
            steps += [
                self.queue.each("verdicts", self.units_after_first_pass, passes.decide, num_units),
                self.queue.each("compare", comparisons.compared, comparisons.compare, comparisons.num_comparisons),
                self.queue.each("near", comparisons.decided_near, comparisons.decide_near, comparisons.num_near_steps),
            ]
        steps.append(self.queue.each("", self.finished, passes.write, num_units))
        for pause in chain.from_iterable(steps):
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
        if self.created and not self.units_after_first_pass() and not self.folder.leases.held():
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

    def _train(self, lease: UnitLease) -> Tokenizer:
        options = self.options
        texts = sample_texts(options.source, MAX_TRAINING_BYTES, options.cleaning.decide, lease.heartbeat)
        return SentencePieceTokenizer(train_tokenizer(texts, options.vocab_size))
