"""Any number of processes, even with some being killed, make the same decisions as a single one."""

import multiprocessing
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from megatape.data.cleaning.comparison import BYTES_PER_HASH
from megatape.data.cleaning.decisions import Cleaning, OnePass
from megatape.data.cleaning.first_pass import FirstPass
from megatape.data.cleaning.rule import parse_rules
from megatape.data.prepare.passes.checksummed_files import ChecksummedFiles
from megatape.data.prepare.passes.decision_pass import DecisionPass
from megatape.data.prepare.passes.first_pass_unit import FirstPassUnit
from megatape.data.prepare.queue.task import WHOLE
from megatape.data.prepare.queue.work_queue import Step, WorkQueue
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.sources.document import Document

TIMEOUTS = replace(DEFAULT_TIMEOUTS, poll_interval=0.01)


class CorpusCase(NamedTuple):
    """Draw texts from fewer ones, altering some.

    Attributes:
        num_texts: Number of texts.
        num_distinct: Number of different texts before altering some.
        altered_share: Share of texts to alter.
        unit_texts: Texts per unit.
        range_texts: Maximum number of texts in a range.
    """

    num_texts: int
    num_distinct: int
    altered_share: float
    unit_texts: int
    range_texts: int


CORPORA = {
    "few duplicates": CorpusCase(60, 200, 0.1, 13, range_texts=10),
    "many duplicates": CorpusCase(60, 12, 0.4, 7, range_texts=30),
    "one text": CorpusCase(40, 1, 0.0, 9, range_texts=40),
    "chains of altered texts": CorpusCase(60, 3, 1.0, 17, range_texts=40),
}


class Killed(Exception):
    """Raised at a heartbeat, ending a process during its work."""


class FirstPasses(NamedTuple):
    """A folder with the first passes over all units.

    Attributes:
        output: Data directory to prepare.
        num_units: Number of units.
        memory_bytes: Memory for a comparison.
        is_kept: Whether one process keeps each text, in order.
    """

    output: Path
    num_units: int
    memory_bytes: int
    is_kept: list[bool]


@pytest.fixture(scope="module")
def cleaning() -> Cleaning:
    return Cleaning(parse_rules(["near_duplicates:words=2"]))


@pytest.fixture(scope="module", params=CORPORA)
def first_passes(request: pytest.FixtureRequest, cleaning: Cleaning, tmp_path_factory: pytest.TempPathFactory) -> FirstPasses:
    corpus = CORPORA[request.param]
    texts = texts_of(corpus)
    folder = PartialFolder(tmp_path_factory.mktemp("first_passes") / "out", TIMEOUTS)
    folder.create()
    units = [texts[begin : begin + corpus.unit_texts] for begin in range(0, len(texts), corpus.unit_texts)]
    for number, unit in enumerate(units):
        folder.first_pass(number).mkdir()
        files = ChecksummedFiles(folder.first_pass(number))
        first_pass = FirstPass(cleaning)
        for text in unit:
            first_pass.decide(Document(text, "a:1"))
        first_pass.save(files.append)
    decide = OnePass(cleaning).decide
    is_kept = [decide(Document(text, "a:1")).text is not None for text in texts]
    return FirstPasses(folder.output, len(units), corpus.range_texts * BYTES_PER_HASH, is_kept)


def texts_of(corpus: CorpusCase) -> list[str]:
    draw = np.random.default_rng(corpus.num_distinct)
    distinct = [[f"w{word}" for word in draw.integers(0, 1000, 40)] for _ in range(corpus.num_distinct)]
    texts = []
    for number in draw.integers(0, corpus.num_distinct, corpus.num_texts):
        words = list(distinct[number])
        if draw.random() < corpus.altered_share:
            words[draw.integers(0, 40)] = "altered"
            distinct[number] = words
        texts.append(" ".join(words))
    return texts


def decision_pass(output: Path, first_passes: FirstPasses, cleaning: Cleaning) -> DecisionPass:
    """Return a decision pass with several ranges and groups, as a separate process would make it."""
    return DecisionPass(
        cleaning, PartialFolder(output, TIMEOUTS), first_passes.num_units, first_passes.memory_bytes, group_units=2
    )


def take_part(decisions: DecisionPass) -> None:
    """Work on all steps until they are finished."""
    queue = WorkQueue(decisions.folder.leases, WHOLE, print)
    run(queue, decisions.division())
    for step in decisions.later_steps():
        run(queue, step)


def run(queue: WorkQueue, step: Step) -> None:
    for pause in queue.run(step):
        time.sleep(pause)


def is_kept(decisions: DecisionPass) -> list[bool]:
    """Return whether each text is kept, in order."""
    kept: list[bool] = []
    for number in range(decisions.num_units):
        unit = FirstPassUnit(decisions.folder.first_pass(number))
        codes = np.fromfile(unit.folder / "codes.u1", np.uint8)
        is_kept_in_unit = codes == 0
        is_kept_in_unit[is_kept_in_unit] = unit.dropped_by(decisions.dropped_rows(number)) == 0
        kept += is_kept_in_unit.tolist()
    return kept


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_any_number_of_processes_decide_like_one(
    first_passes: FirstPasses, cleaning: Cleaning, tmp_path: Path, num_workers: int
) -> None:
    output = tmp_path / "out"
    shutil.copytree(f"{first_passes.output}.partial", f"{output}.partial")
    passes = [decision_pass(output, first_passes, cleaning) for _ in range(num_workers)]
    # Forked processes start at once, and have loaded the packages.
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=take_part, args=(decisions,)) for decisions in passes]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0] * num_workers
    assert is_kept(passes[0]) == first_passes.is_kept
    assert len(list((tmp_path / "out.partial" / "compared").glob("range-*"))) >= len(cleaning.compared_columns)


class MortalLease:
    """A lease held by a process that is killed at a heartbeat."""

    def __init__(self, num_heartbeats: int) -> None:
        self._num_left = num_heartbeats

    def heartbeat(self) -> None:
        self._num_left -= 1
        if self._num_left < 0:
            raise Killed


@pytest.mark.parametrize("num_heartbeats", [0, 3, 20, 90])
def test_decisions_of_killed_processes_are_made_again(
    first_passes: FirstPasses, cleaning: Cleaning, tmp_path: Path, num_heartbeats: int
) -> None:
    """A process is killed in every step, after doing part of it."""
    output = tmp_path / "out"
    shutil.copytree(f"{first_passes.output}.partial", f"{output}.partial")
    die_in(decision_pass(output, first_passes, cleaning).division(), num_heartbeats)
    run(queue_of(output), decision_pass(output, first_passes, cleaning).division())
    num_steps = len(decision_pass(output, first_passes, cleaning).later_steps())
    for number in range(num_steps):
        die_in(decision_pass(output, first_passes, cleaning).later_steps()[number], num_heartbeats)
        run(queue_of(output), decision_pass(output, first_passes, cleaning).later_steps()[number])

    assert is_kept(decision_pass(output, first_passes, cleaning)) == first_passes.is_kept


def queue_of(output: Path) -> WorkQueue:
    return WorkQueue(PartialFolder(output, TIMEOUTS).leases, WHOLE, print)


def die_in(step: Step, num_heartbeats: int) -> None:
    """Work on a step until the heartbeats are used up, or the step is finished."""
    lease: Any = MortalLease(num_heartbeats)
    for number in range(step.count):
        try:
            step.work(number, lease)
        except Killed:
            return
