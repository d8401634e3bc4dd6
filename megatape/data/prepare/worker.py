"""A corpus to a data directory, by any number of processes and machines, each of which may be killed at any moment.

The source is divided into units (sources/source.py), each of which one process reads, tokenizes and writes; partial.py keeps
the finished ones. The result is a function of source and options: who did what, when and how often does not show in it.
"""

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from megatape.data.cleaning.cleaning import Cleaning
from megatape.data.cleaning.decisions import FirstPass, SecondPass, compare, judge_at_once
from megatape.data.prepare.documents import batches, split_of, tokenizer_entry
from megatape.data.prepare.partial import PartialFolder, Plan, unit_name
from megatape.data.prepare.unit_lease import Claim
from megatape.data.prepare.unit_writer import UnitWriter
from megatape.data.shards.index import Index
from megatape.data.sources.reading import read_documents, read_unit
from megatape.data.sources.source import CorpusCounts, Source, Unit
from megatape.data.tokenizers.fast import FastTokenizer, IdsDiffer, fast_tokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from megatape.files import temporary_name, write_atomically

LOG = logging.getLogger(__name__)

FIRST, LAST = "verdicts", "tokens"  # passes over the source
REPORTED = 1000  # documents between reports of the first pass
Report = Callable[[int, str, CorpusCounts, int], None]  # unit, pass, what was read of it so far, tokens written


@dataclass(frozen=True)
class Corpus:
    """What to prepare.

    tokenizer: that of the data; None: one of `vocab_size` tokens is trained on the source first. drop_duplicates: leave out
    documents that equal an earlier one. several: tokenizers of several data directories, by their names below the output, in
    place of `tokenizer`. cleaning: the rules by which documents are left out or changed.
    """

    source: Source
    validation_share: float
    tokenizer: Tokenizer | None
    vocab_size: int
    drop_duplicates: bool = True
    several: Mapping[str, Tokenizer] = field(default_factory=dict)
    cleaning: Cleaning = field(default_factory=Cleaning)

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """By the name of the data directory below the output, which is empty where there is only one. Empty: to be trained."""
        return dict(self.several) or ({} if self.tokenizer is None else {"": self.tokenizer})


class Preparation:
    """A preparation in `folder`.

    units: all parts of the source. warn: shows a line to the user. created: whether this process made the folder. fast: what
    stands in for tokenizers.
    """

    created = False

    def __init__(
        self, corpus: Corpus, folder: PartialFolder, units: list[Unit], warn: Callable[[str], None] = LOG.warning
    ) -> None:
        self.corpus, self.folder, self.units, self.warn = corpus, folder, units, warn
        self._waited, self._holder = 0.0, ""  # seconds since this process last had work, and for whom the user knows it waits
        self.fast: dict[str, FastTokenizer] = {}

    def begin(self) -> Plan:
        """Decide what the result is, as this process's options say, and store it; or go on with what another has stored.

        Raises UserError if the two differ.
        """
        folder = self.folder
        self.created = folder.create()
        while (plan := folder.plan()) is None:
            with folder.claim("plan") as claim:
                if claim is not None and folder.plan() is None:
                    tokenizers = self.corpus.tokenizers or {"": self._train()}
                    folder.begin(self._plan(tokenizers), tokenizers)
                    continue
            self._wait("plan")
        tokenizers = self.corpus.tokenizers or folder.tokenizers(plan)
        wanted = self._plan(tokenizers)
        if difference := plan.difference(wanted, self._touched()):
            raise UserError(
                f"{folder.path} was begun with other {difference}. Give the same inputs and options to go on, or remove it to "
                "begin again"
            )
        if plan != wanted:
            folder.begin(wanted, tokenizers)
        return wanted

    def hasten(self, tokenizers: dict[str, Tokenizer], warn: bool = True) -> None:
        """Tokenize by gigatoken where it does the same. warn: print where it does not."""
        self.fast = {name: fast for name, tokenizer in tokenizers.items() if (fast := fast_tokenizer(tokenizer, warn))}

    def work(self, tokenizers: dict[str, Tokenizer], report: Report) -> None:
        """Prepare units until all are finished, those that other processes work on included."""
        folder = self.folder
        if self.num_passes > 1 and len(self.finished()) < len(self.units):
            self._each("verdicts", lambda number: folder.first_pass(number).exists(), partial(self._judge, report=report))
            self._each("compare", lambda _: folder.compared().exists(), self._compare, 1)
        self._each("", folder.is_finished, partial(self._write, tokenizers=tokenizers, report=report))

    @property
    def num_passes(self) -> int:
        """How often the source is read."""
        compares = self.corpus.drop_duplicates or self.corpus.cleaning.near_duplicates is not None
        return 2 if compares and len(self.units) > 1 else 1

    def _each(
        self, kind: str, is_done: Callable[[int], bool], make: Callable[[int, Claim], None], count: int | None = None
    ) -> None:
        """Make what is not done and nobody else is making, until all is done. count: how many there are; None: the units."""
        numbers = range(len(self.units) if count is None else count)
        while left := [number for number in numbers if not is_done(number)]:
            worked, names = False, {number: f"{unit_name(number)}{kind and '.'}{kind}" for number in left}
            for number, name in names.items():
                with self.folder.claim(name) as claim:
                    if claim is not None and not is_done(number):
                        make(number, claim)
                        worked = True
            if worked:
                self._waited = 0.0
            else:
                self._wait(names[left[0]])

    def finish(self, plan: Plan) -> tuple[Index, CorpusCounts | None]:
        """Make the data directory of all units, which are finished. Returns what PartialFolder.finish does."""
        while True:
            with self.folder.claim("finish") as claim:
                if claim is not None:
                    return self.folder.finish(self.corpus.source, plan)
            self._wait("finish")

    def _wait(self, name: str) -> None:
        """Wait for a moment for the process that has a claim, and tell the user once that takes long."""
        patience = self.folder.patience
        time.sleep(patience.poll)
        self._waited += patience.poll
        if self._waited > 2 * patience.period and (holder := self.folder.holder(name)) != self._holder:
            self._holder = holder
            self.warn(
                f"waiting for {holder}: it lasts until that process is done, ends, or is stopped or unreachable for "
                f"{patience.silence:.0f} s"
            )

    def abandon(self) -> None:
        """Remove the folder if this process made it and it holds nothing that is worth going on with."""
        if self.created and not self._touched() and not self.folder.is_claimed():
            self.folder.remove()

    def finished(self) -> set[int]:
        """The units that are there."""
        return {number for number in range(len(self.units)) if self.folder.is_finished(number)}

    def _touched(self) -> set[int]:
        """The units of which something is there."""
        return self.finished() | {number for number in range(len(self.units)) if self.folder.first_pass(number).exists()}

    def _plan(self, tokenizers: dict[str, Tokenizer]) -> Plan:
        corpus = self.corpus
        trained = None if corpus.tokenizers else corpus.vocab_size
        return Plan(
            corpus.source.describe(),
            self.units,
            0.0 if corpus.source.validation else corpus.validation_share,
            {name: tokenizer_entry(tokenizer) for name, tokenizer in tokenizers.items()},
            trained,
            corpus.drop_duplicates,
            corpus.cleaning.describe(),
        )

    def _train(self) -> Tokenizer:
        corpus = self.corpus
        texts = (document.text for document in read_documents(corpus.source, CorpusCounts(), corpus.cleaning.apply))
        return SentencePieceTokenizer(train_tokenizer(texts, corpus.vocab_size))

    def _judge(self, number: int, claim: Claim, report: Report) -> None:
        counts, verdicts = CorpusCounts(), FirstPass(self.corpus.cleaning, self.corpus.drop_duplicates)
        unit = self.units[number]
        for count, document in enumerate(read_unit(self.corpus.source, unit, counts)):
            verdicts.add(document.text)
            claim.beat()
            if count % REPORTED == 0:
                report(number, FIRST, counts, 0)
        unit.check_unchanged()
        report(number, FIRST, counts, 0)
        write_atomically(self.folder.first_pass(number), verdicts.content())

    def _compare(self, _: int, claim: Claim) -> None:
        files = [self.folder.first_pass(number) for number in range(len(self.units))]
        write_atomically(self.folder.compared(), compare(files, claim.beat))

    def _second_pass(self, number: int) -> SecondPass | None:
        """Over a unit; None if there is only one pass."""
        if self.num_passes == 1:
            return None
        folder = self.folder
        return SecondPass(self.corpus.cleaning, folder.first_pass(number), folder.compared(), number, str(self.units[number]))

    def _write(self, number: int, claim: Claim, tokenizers: dict[str, Tokenizer], report: Report) -> None:
        try:
            self._write_unit(number, claim, tokenizers, self.fast, report)
        except IdsDiffer as difference:
            LOG.warning(f"{difference}. Its unit is tokenized again without gigatoken")
            self._write_unit(number, claim, tokenizers, {}, report)

    def _write_unit(
        self,
        number: int,
        claim: Claim,
        tokenizers: dict[str, Tokenizer],
        fast: dict[str, FastTokenizer],
        report: Report,
    ) -> None:
        corpus, unit, counts = self.corpus, self.units[number], CorpusCounts()
        second = self._second_pass(number)
        judge = second.judge if second else judge_at_once(corpus.cleaning, corpus.drop_duplicates)
        written = temporary_name(self.folder.unit_folder(number))
        try:
            part = f"-{unit_name(number)}" if len(self.units) > 1 else ""
            writers = []
            for name, tokenizer in tokenizers.items():
                (written / name).mkdir(parents=True)
                encode = fast[name].encode_documents if name in fast else tokenizer.encode_documents
                writers.append(UnitWriter(written / name, part, tokenizer, encode))
            read, share = read_unit(corpus.source, unit, counts, judge), corpus.validation_share
            documents = ((unit.split or split_of(document.text, share), document) for document in read)
            for batch in batches(documents):
                for writer in writers:
                    writer.add(batch)
                claim.beat()
                report(number, LAST, counts, sum(writer.tokens for writer in writers))
            if second:
                second.close()
            unit.check_unchanged()
            for writer in writers:
                writer.close(counts)
            report(number, LAST, counts, sum(writer.tokens for writer in writers))
            self.folder.commit(written, number)
        finally:
            shutil.rmtree(written, ignore_errors=True)
