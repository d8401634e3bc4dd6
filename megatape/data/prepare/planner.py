"""Agrees on one plan for all processes of a preparation: the first process stores it, the others resume with it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.folder_leases import PLANNING
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.plan import Plan, files_of
from megatape.data.prepare.redo import discard_changed
from megatape.data.prepare.training_sample import sample_texts
from megatape.data.prepare.unit_lease import UnitLease
from megatape.data.prepare.work_queue import WorkQueue
from megatape.data.sources.units import UNIT_BYTES, Unit, default_unit_bytes
from megatape.data.tokenizers.sentencepiece import MAX_TRAINING_BYTES, SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError

# Maximum number of changed files named in an error.
NUM_SHOWN = 3


class Planner:
    """Stores the plan of this process in the folder, or checks that a stored plan fits its options.

    Attributes:
        options: Options of this process. `agree` sets the unit size.
        units: All units of the source. `agree` replaces them by the plan's.
    """

    def __init__(
        self,
        options: PreparationOptions,
        units: list[Unit],
        folder: PartialFolder,
        queue: WorkQueue,
        warn: Callable[[str], None],
    ) -> None:
        self.options = options
        self.units = units
        self._folder = folder
        self._queue = queue
        self._warn = warn
        self._skipped = options.source.skipped_files()

    def agree(self, workers: int, redo: Sequence[str]) -> Plan:
        """Return the plan for the present files of the source, which is stored now.

        Args:
            workers: Number of processes. It decides the unit size unless the user or a stored plan does.
            redo: Files that have changed since they were read, to prepare their units again.

        Raises:
            UserError: The stored plan differs from the options.
        """
        folder = self._folder
        stored = self._stored_plan(workers)
        self._divide(stored.unit_bytes)
        tokenizer = self.options.tokenizer or folder.tokenizer(stored)
        if redo:
            stored = discard_changed(folder, self.options, stored, redo, self._warn)
        self.units = self._divided_as(stored)
        present = self.options.plan(self.units, tokenizer, self._skipped)
        self._check_same(stored, present)
        if stored != present:
            folder.store_plan(present, tokenizer)
        return present

    def _stored_plan(self, workers: int) -> Plan:
        """Return the stored plan. If it is missing, store one, or wait for the process storing it."""
        folder = self._folder
        while True:
            plan = folder.plan()
            if plan is not None:
                return plan
            with folder.leases.hold(PLANNING) as lease:
                # Another process may have stored its plan just before.
                if lease is not None and folder.plan() is None:
                    self._store_plan(workers, lease)
                    continue
            time.sleep(self._queue.pause(PLANNING))

    def _store_plan(self, workers: int, lease: UnitLease) -> None:
        num_bytes = sum(unit.num_bytes for unit in self.units)
        self._divide(default_unit_bytes(num_bytes, workers))
        tokenizer = self.options.tokenizer or self._train(lease)
        plan = self.options.plan(self.units, tokenizer, self._skipped)
        self._folder.store_plan(plan, tokenizer)

    def _check_same(self, stored: Plan, present: Plan) -> None:
        """Raise UserError if finished work of the stored plan does not fit the present one."""
        finished = self._folder.finished(len(self.units))
        used = finished | self._folder.first_passes()
        difference = stored.difference(present, used)
        if difference is None:
            return
        message = f"{self._folder.path} was begun with other {difference}. Give the same inputs and options to resume"
        changed = stored.changed_files(present)
        if changed:
            message += f", add `redo` {' '.join(changed[:NUM_SHOWN])} to prepare the changed files again"
        raise UserError(f"{message}, or remove it to begin again")

    def _divided_as(self, plan: Plan) -> list[Unit]:
        """Return the units of a stored plan, updated to present file sizes; this process's units if the files differ."""
        present_files = files_of(self.units)
        stored_files = files_of(plan.units)
        has_versions = all(unit.versions for unit in (*self.units, *plan.units))
        has_same_units = present_files.keys() == stored_files.keys() and plan.unit_bytes == self.options.unit_bytes
        if not has_versions or not has_same_units:
            return self.units
        changed = {name for name, version in present_files.items() if stored_files[name] != version}
        if not changed:
            return plan.units
        return plan.with_present_files(changed).plan.units

    def _divide(self, unit_bytes: int) -> None:
        """Divide the source into units of this size, unless their size is known."""
        source = self.options.source
        if source.unit_bytes is None:
            self.options = replace(self.options, source=replace(source, unit_bytes=unit_bytes))
            if unit_bytes != UNIT_BYTES:
                self.units = self.options.source.units()

    def _train(self, lease: UnitLease) -> Tokenizer:
        options = self.options
        texts = sample_texts(options.source, MAX_TRAINING_BYTES, options.cleaning.decide, lease.heartbeat)
        return SentencePieceTokenizer(train_tokenizer(texts, options.vocab_size))
