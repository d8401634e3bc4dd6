"""A preparation by any number of processes and machines, each of which may be killed at any moment.

The source is divided into units, each of which one process reads, tokenizes and writes (unit.py); folder.py keeps the finished
ones. The result is a function of source and options, whichever process does which part, when and how often.
"""

import logging
import random
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from megatape.data.cleaning.decisions import KEYS, NEAR_DUPLICATES, RUN_ENDS, RUNS, FirstPass, OnePass, compare, near_drops
from megatape.data.counts import CorpusCounts
from megatape.data.io.remote import file_states
from megatape.data.prepare.corpus import Corpus, Plan, files_of
from megatape.data.prepare.documents import DocumentFiles
from megatape.data.prepare.draft_files import check_files
from megatape.data.prepare.folder import PartialFolder, unit_name
from megatape.data.prepare.task import WHOLE, Task
from megatape.data.prepare.training_sample import sample_texts
from megatape.data.prepare.unit import Draft, Progress, UnitWriter, read_batches
from megatape.data.prepare.unit_lease import UnitLease
from megatape.data.shards.entries import Index
from megatape.data.sources.units import UNIT_BYTES, Unit, default_unit_bytes
from megatape.data.tokenizers.fast import FastTokenizer, IdsDiffer
from megatape.data.tokenizers.sentencepiece import MAX_TRAINING_BYTES, SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError, did_you_mean
from megatape.utils.files import write_atomically

LOG = logging.getLogger(__name__)

NUM_SHOWN = 3  # Maximum number of changed files named in an error.
# passes over a unit
FIRST = "decisions"
LAST = "tokens"
Report = Callable[[int, str, Progress], None]  # number of a unit, pass, work done on it so far


class Preparation:
    """A preparation of `corpus` in `folder`.

    Args:
        corpus: The corpus.
        folder: Folder of the unfinished preparation.
        units: All parts of the source.
        warn: Shows a line to the user.
        task: Share of this machine, with which it begins.

    Attributes:
        created: Whether this process created the folder.
    """

    created = False

    def __init__(
        self,
        corpus: Corpus,
        folder: PartialFolder,
        units: list[Unit],
        warn: Callable[[str], None] = LOG.warning,
        task: Task = WHOLE,
    ) -> None:
        self.corpus = corpus
        self.folder = folder
        self.units = units
        self.warn = warn
        self.task = task
        self._offset = secrets.randbelow(2**31)  # other processes begin elsewhere
        # seconds since this process last had work, and the holder that was shown
        self._waited = 0.0
        self._holder = ""

    def begin(self, workers: int = 1, redo: Sequence[str] = ()) -> Plan:
        """Store the plan of this process's options, or resume with a stored one.

        Args:
            workers: Number of processes, which decides the size of units unless the user or a stored plan does.
            redo: Names of files that have changed since they were read. Their units are prepared again.

        Raises:
            UserError: The two differ.
        """
        folder = self.folder
        skipped = self.corpus.source.skipped_files()
        self.created = folder.create()
        while (plan := folder.plan()) is None:
            with folder.lease("plan") as lease:
                if lease is not None and folder.plan() is None:
                    self._divide(default_unit_bytes(sum(unit.num_bytes for unit in self.units), workers))
                    tokenizer = self.corpus.tokenizer or self._train(lease)
                    folder.begin(self.corpus.plan(self.units, tokenizer, skipped), tokenizer)
                    continue
            time.sleep(self._pause("plan"))
        self._divide(plan.unit_bytes)
        tokenizer = self.corpus.tokenizer or folder.tokenizer(plan)
        if redo:
            plan = self._redo(plan, redo)
        self.units = self._divided_as(plan)
        wanted = self.corpus.plan(self.units, tokenizer, skipped)
        if difference := plan.difference(wanted, self._used()):
            message = f"{folder.path} was begun with other {difference}. Give the same inputs and options to resume"
            if changed := plan.changed_files(wanted):
                message += f", add `redo` {' '.join(changed[:NUM_SHOWN])} to prepare the changed files again"
            raise UserError(f"{message}, or remove it to begin again")
        if plan != wanted:
            folder.begin(wanted, tokenizer)
        return wanted

    def _redo(self, plan: Plan, names: Sequence[str]) -> Plan:
        """Remove the results of units with changed files. Returns the plan with the present versions of these files.

        If documents of all units are compared with each other, finished units are prepared again as well: their drafts have
        been removed, so the changed documents could not be compared with them. Drafts of other units stay.
        """
        wanted = {_named(name, files_of(plan.units)) for name in names}
        changed, numbers = _with_present_states(plan, wanted)
        if changed == plan:
            return plan  # An earlier command has removed the results.
        for name in sorted(self.folder.leases()):
            with self.folder.lease(name) as lease:
                if lease is None:
                    raise UserError(f"`redo`: another process is still running ({self.folder.holder(name)}): end it first")
        finished = self.folder.finished(len(plan.units))
        discarded = numbers & (finished | self.folder.drafts())
        files = ", ".join(sorted(wanted))
        message = f"{len(discarded):,} of {len(plan.units):,} units have read {files} and are prepared again"
        if self.corpus.cleaning.compares and len(plan.units) > 1 and finished - numbers:
            message += f", and {len(finished - numbers):,} finished units, whose documents are compared with theirs"
            discarded |= finished
        self.folder.discard(discarded)
        self.folder.begin(changed, self.folder.tokenizer(plan))
        self.warn(message)
        return changed

    def _divided_as(self, plan: Plan) -> list[Unit]:
        """Return the units of a stored plan with present file sizes. If its files differ, return this process's units."""
        mine = files_of(self.units)
        its = files_of(plan.units)
        known = all(unit.versions for unit in (*self.units, *plan.units))
        if not known or mine.keys() != its.keys() or plan.unit_bytes != (self.corpus.source.unit_bytes or UNIT_BYTES):
            return self.units
        changed = {name for name, version in mine.items() if its[name] != version}
        return _with_present_states(plan, changed)[0].units if changed else plan.units

    def _divide(self, unit_bytes: int) -> None:
        """Divide the source into units of this size, unless their size is known."""
        source = self.corpus.source
        if source.unit_bytes is None:
            self.corpus = replace(self.corpus, source=replace(source, unit_bytes=unit_bytes))
            if unit_bytes != UNIT_BYTES:
                self.units = self.corpus.source.units()

    def work(self, tokenizer: Tokenizer, fast: FastTokenizer | None, report: Report) -> None:
        """Process units until all are finished, by whichever process.

        Args:
            tokenizer: Tokenizer of the data.
            fast: A faster one with the same ids, if there is one.
            report: Called again and again.
        """
        steps = [self._each("", self.finished, partial(self._write, tokenizer=tokenizer, fast=fast, report=report))]
        if self.num_passes > 1 and len(self.finished()) < len(self.units):
            decide = partial(self._decide, tokenizer=tokenizer, fast=fast, report=report)
            decisions = self._each("verdicts", self._used, decide)
            comparison = self._each("compare", self._compared, self._compare, len(self.corpus.cleaning.comparisons))
            near = self._each("near", self._decided_near, self._decide_near, self._num_near_steps)
            steps = [decisions, comparison, near, *steps]
        for pause in chain.from_iterable(steps):
            time.sleep(pause)

    @property
    def num_passes(self) -> int:
        """Number of passes over a unit, of which the first one reads the source."""
        return 2 if self.corpus.cleaning.compares and len(self.units) > 1 else 1

    def _each(
        self, step: str, done: Callable[[], set[int]], work: Callable[..., None], count: int | None = None
    ) -> Iterator[float]:
        """Process free units until all are finished.

        Each round takes two listings and tries one lease, so that idle processes do not burden the file system that they share.

        Args:
            step: Name of the step.
            done: Lists the finished units.
            work: Processes a unit, by its number and lease; without the fast tokenizer if its ids differ.
            count: Number of parts of the step; None: the units.

        Yields:
            Seconds to wait for other processes.
        """
        names = [f"{unit_name(number)}{step and '.'}{step}" for number in range(len(self.units) if count is None else count)]
        while left := sorted(set(range(len(names))) - done()):
            leases = self.folder.leases()
            number = self._choose(left, [number for number in left if names[number] not in leases])
            with self.folder.lease(names[number]) as lease:
                if lease is not None and number not in done():
                    try:
                        work(number, lease)
                    except IdsDiffer as difference:
                        LOG.warning(f"{difference}. Its unit is tokenized again without gigatoken")
                        work(number, lease, fast=None)
                    self._waited = 0.0
            if lease is None:
                yield self._pause(names[number])

    def _choose(self, left: Sequence[int], free: Sequence[int]) -> int:
        """The unit to try of those that are left, of which some are free: of this task's share first.

        Where other processes are at work, the choice is at random, so that they do not all try the same.
        """
        share = [number for number in free if number % self.task.count == self.task.index] or free
        if len(free) == len(left) and share:
            return share[0]
        self._offset += 1
        options = share or left  # of which the process may have died
        return options[self._offset % len(options)]

    def finish(self, plan: Plan) -> tuple[Index, CorpusCounts | None]:
        """Make the data directory of all units, which are finished. Returns the result of PartialFolder.finish."""
        while True:
            with self.folder.lease("finish") as lease:
                if lease is not None:
                    return self.folder.finish(self.corpus.source, plan, lease.beat)
            time.sleep(self._pause("finish"))

    def _pause(self, name: str) -> float:
        """Seconds to wait for the holder of a lease: at random, and the longer the longer this process has waited.

        Tells the user once it has waited for long.
        """
        timeouts = self.folder.timeouts
        longest = max(timeouts.heartbeat_interval, timeouts.poll_interval)
        pause = random.uniform(0.5, 1.5) * min(max(timeouts.poll_interval, self._waited / 3), longest)
        self._waited += pause
        if self._waited > 2 * timeouts.heartbeat_interval and (holder := self.folder.holder(name)) != self._holder:
            self._holder = holder
            self.warn(
                f"waiting for {holder}: it lasts until that process is done, ends, or is stopped or unreachable for "
                f"{timeouts.expiry:.0f} s"
            )
        return pause

    def abandon(self) -> None:
        """Remove the folder if this process created it and it holds no finished work."""
        if self.created and not self._used() and not self.folder.leases():
            self.folder.remove()

    def finished(self) -> set[int]:
        """The finished units."""
        return self.folder.finished(len(self.units))

    def num_done(self) -> int:
        """Number of passes over units that are done."""
        return 2 * len(self.finished()) + len(self.folder.drafts() - self.finished())

    def _used(self) -> set[int]:
        """The units that were read."""
        return self.finished() | self.folder.drafts()

    def _train(self, lease: UnitLease) -> Tokenizer:
        corpus = self.corpus
        texts = sample_texts(corpus.source, MAX_TRAINING_BYTES, corpus.cleaning.decide, lease.beat)
        return SentencePieceTokenizer(train_tokenizer(texts, corpus.vocab_size))

    def _decide(self, number: int, lease: UnitLease, tokenizer: Tokenizer, fast: FastTokenizer | None, report: Report) -> None:
        """Read and tokenize a unit, and keep what decides whether another one has its documents, too."""
        unit = self.units[number]
        counts = CorpusCounts()
        first_pass = FirstPass(self.corpus.cleaning)
        with self.folder.new(self.folder.draft(number)) as folder, self._documents(number, folder) as documents:
            record = documents.record if documents else None
            batches = read_batches(self.corpus, unit, first_pass.decide, fast or tokenizer, counts, lease.beat, record)
            Draft(folder, tokenizer.vocab_size).write(batches, first_pass, counts, partial(report, number, FIRST))

    def _documents(self, number: int, folder: Path) -> AbstractContextManager[DocumentFiles | None]:
        """The files in a unit's folder for its documents, if they are kept."""
        part = "-".join(filter(None, [unit_name(number), self.units[number].split]))
        return closing(DocumentFiles(folder, part)) if self.corpus.keep_documents else nullcontext()

    def _compared(self) -> set[int]:
        """The comparisons that are done."""
        return {number for number in range(len(self.corpus.cleaning.comparisons)) if self.folder.compared(number).exists()}

    def _compare(self, number: int, lease: UnitLease) -> None:
        array, rule = self.corpus.cleaning.comparisons[number]
        drafts = [self.folder.draft(unit) for unit in range(len(self.units))]
        near = None
        files = [KEYS]
        if rule == NEAR_DUPLICATES:
            near = self.corpus.cleaning.near_duplicates
            files = [KEYS, RUNS, RUN_ENDS]
        for folder in drafts:
            lease.beat()
            check_files(folder, files)
        write_atomically(self.folder.compared(number), compare(drafts, array, near, lease.beat))

    @property
    def _num_near_steps(self) -> int:
        """Number of steps after comparing all bands: 1 to decide about near duplicates, 0 without them."""
        return 0 if self.corpus.cleaning.near_duplicates is None else 1

    def _decided_near(self) -> set[int]:
        """Return the finished steps of `_num_near_steps`."""
        return {0} if self.folder.near_drops().exists() else set()

    def _decide_near(self, number: int, lease: UnitLease) -> None:
        comparisons = enumerate(self.corpus.cleaning.comparisons)
        bands = [self.folder.compared(comparison) for comparison, (_, rule) in comparisons if rule == NEAR_DUPLICATES]
        drafts = [self.folder.draft(unit) for unit in range(len(self.units))]
        write_atomically(self.folder.near_drops(), near_drops(drafts, bands, lease.beat))

    def _drop_files(self) -> list[Path]:
        """Return a file with the dropped documents for each of `Cleaning.comparing_rules`."""
        comparisons = self.corpus.cleaning.comparisons
        files = {rule: self.folder.compared(number) for number, (_, rule) in enumerate(comparisons)}
        if NEAR_DUPLICATES in files:
            files[NEAR_DUPLICATES] = self.folder.near_drops()
        return [files[rule] for rule in self.corpus.cleaning.comparing_rules]

    def _write(self, number: int, lease: UnitLease, tokenizer: Tokenizer, fast: FastTokenizer | None, report: Report) -> None:
        unit = self.units[number]
        part = f"-{unit_name(number)}" if len(self.units) > 1 else ""
        draft = Draft(self.folder.draft(number), tokenizer.vocab_size)
        try:
            with self.folder.new(self.folder.unit_folder(number)) as folder, self._documents(number, folder) as documents:
                if self.num_passes == 1:
                    counts = CorpusCounts()
                    decide = OnePass(self.corpus.cleaning).decide
                    record = documents.record if documents else None
                    batches = read_batches(self.corpus, unit, decide, fast or tokenizer, counts, lease.beat, record)
                else:
                    draft.check()
                    counts = draft.counts()
                    rules = self.corpus.cleaning.comparing_rules
                    drops = draft.drops(self._drop_files(), number)
                    batches = draft.kept(drops, rules, counts)
                    if documents:
                        documents.compared(draft.folder, drops, rules)
                UnitWriter(folder, part, tokenizer).write(batches, counts, partial(report, number, LAST), documents)
            shutil.rmtree(draft.folder, ignore_errors=True)
        except FileNotFoundError:
            if number not in self.finished():  # otherwise another process has finished it and removed its draft
                raise


def _with_present_states(plan: Plan, names: Collection[str]) -> tuple[Plan, set[int]]:
    """Return a plan for the present content of some files, and the numbers of the units that read one of them."""
    numbers = {number for number, unit in enumerate(plan.units) if not set(unit.inputs).isdisjoint(names)}
    files = sorted({name for number in numbers for name in plan.units[number].inputs})
    states = dict(zip(files, file_states(files), strict=True))
    return plan.with_states(numbers, states), numbers


def _named(name: str, files: Collection[str]) -> str:
    """Return the file with this path or end of a path. Raises UserError if there is none, or several."""
    found = [file for file in files if file == name or file.endswith(f"/{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        reason = f"{len(found)} inputs have this name"
    else:
        reason = f"no input has this name; {did_you_mean(name, files)}".rstrip("; ")
    raise UserError(f"redo {name}: {reason}: name it as the error about it does")
