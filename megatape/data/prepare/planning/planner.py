"""Agrees on one plan for all processes of a preparation: the first process stores it, the others resume with it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.planning.redo import discard_changed
from megatape.data.prepare.planning.training_sample import sample_texts
from megatape.data.prepare.queue.work_queue import WorkQueue
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.folder_leases import PLANNING
from megatape.data.prepare.shared_folder.plan import Plan, files_of
from megatape.data.prepare.shared_folder.unit_lease import UnitLease
from megatape.data.sources.units import UNIT_BYTES, Unit, default_unit_bytes
from megatape.data.tokenizers.sentencepiece import MAX_TRAINING_BYTES, SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError, flag

# Maximum number of changed files named in an error.
NUM_SHOWN = 3


class AgreedPlan(NamedTuple):
    """Plan that all processes of a preparation follow, with the options of this process, unit size included."""

    plan: Plan
    options: PreparationOptions


class _DividedSource(NamedTuple):
    """Options including the unit size, and the units into which they divide the source."""

    options: PreparationOptions
    units: list[Unit]


class Planner:
    """Stores the plan of this process in the folder, or checks that a stored plan fits its options.

    Args:
        options: Options of this process.
        units: All units of the source, for the default unit size unless the options set it.
        folder: Unfinished preparation.
        queue: Waits for another process storing its plan.
        warn: Shows a line to the user.
    """

    def __init__(
        self,
        options: PreparationOptions,
        units: list[Unit],
        folder: PartialFolder,
        queue: WorkQueue,
        warn: Callable[[str], None],
    ) -> None:
        self._options = options
        self._units = units
        self._folder = folder
        self._queue = queue
        self._warn = warn
        self._skipped = options.source.skipped_files()

    def agree(self, workers: int, redo: Sequence[str]) -> AgreedPlan:
        """Return the plan for the present files of the source, which is stored now.

        Args:
            workers: Number of processes. It decides the unit size unless the user or a stored plan does.
            redo: Files that have changed since they were read, to prepare their units again.

        Raises:
            UserError: The stored plan differs from the options.
        """
        folder = self._folder
        stored = self._stored_plan(workers)
        # All units are compared below. Reading them at once takes less time than one at a time.
        stored = replace(stored, units=list(stored.units))
        divided = self._divided(stored.unit_bytes)
        options = divided.options
        tokenizer = options.tokenizer or folder.tokenizer(stored)
        if redo:
            stored = discard_changed(folder, options, stored, redo, self._warn)
        units = _divided_as(stored, divided)
        present = options.plan(units, tokenizer, self._skipped)
        self._check_same(stored, present)
        if stored != present:
            folder.store_plan(present, tokenizer)
        return AgreedPlan(present, options)

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
        num_bytes = sum(unit.num_bytes for unit in self._units)
        options, units = self._divided(default_unit_bytes(num_bytes, workers))
        tokenizer = options.tokenizer or self._train(options, lease)
        plan = options.plan(units, tokenizer, self._skipped)
        self._folder.store_plan(plan, tokenizer)

    def _check_same(self, stored: Plan, present: Plan) -> None:
        """Raise UserError if finished work of the stored plan does not fit the present one."""
        finished = self._folder.finished(len(present.units))
        used = finished | self._folder.first_passes()
        difference = stored.difference(present, used)
        if difference is None:
            return
        message = f"{self._folder.path} was begun with other {difference}. Give the same inputs and options to resume"
        changed = stored.changed_files(present)
        if changed:
            message += f", add {flag('redo')} {' '.join(changed[:NUM_SHOWN])} to prepare the changed files again"
        raise UserError(f"{message}, or remove it to begin again")

    def _divided(self, unit_bytes: int) -> _DividedSource:
        """Return the units of this size into which the options divide the source, unless they set another size."""
        options = self._options
        source = options.source
        if source.unit_bytes is not None:
            return _DividedSource(options, self._units)
        options = replace(options, source=replace(source, unit_bytes=unit_bytes))
        units = self._units
        if unit_bytes != UNIT_BYTES:
            units = options.source.units()
        return _DividedSource(options, units)

    def _train(self, options: PreparationOptions, lease: UnitLease) -> Tokenizer:
        texts = sample_texts(options.source, MAX_TRAINING_BYTES, options.cleaning.decide, lease.heartbeat)
        return SentencePieceTokenizer(train_tokenizer(texts, options.vocab_size))


def _divided_as(plan: Plan, divided: _DividedSource) -> Sequence[Unit]:
    """Return the units of a stored plan, updated to present file sizes; this process's units if the files differ."""
    present_files = files_of(divided.units)
    stored_files = files_of(plan.units)
    has_versions = all(unit.versions for unit in (*divided.units, *plan.units))
    has_same_units = present_files.keys() == stored_files.keys() and plan.unit_bytes == divided.options.unit_bytes
    if not has_versions or not has_same_units:
        return divided.units
    changed = {name for name, version in present_files.items() if stored_files[name] != version}
    if not changed:
        return plan.units
    return plan.with_present_files(changed).plan.units
