"""Many machines prepare one folder: they start with their own shares, and idle ones do not burden its file system."""

import heapq
import io
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.preparation import Preparation
from megatape.data.prepare.queue.task import Task
from megatape.data.prepare.queue.work_queue import Step
from megatape.data.prepare.shared_folder.folder import PartialFolder, unit_name
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.sources.source import Source
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.processes.clock import Clock
from tests.helpers.processes.leases import elsewhere

NUM_UNITS = 600
NUM_WORKERS = 512
# Names in a file server's reply to listing a folder
LISTED = 170
# Calls to a file server made by each Python function
CALLS_PER_FUNCTION = [
    (os, "stat", 1),
    (os, "unlink", 1),
    (os, "utime", 1),
    (os, "open", 2),
    (io, "open", 3),
]
ALONE = Task()

MakePreparation = Callable[..., Preparation]


@pytest.fixture
def make_preparation(tmp_path: Path, tokenizer: Tokenizer) -> MakePreparation:
    """Return a function: make_preparation(task) makes the preparation in one of many processes."""
    corpus = PreparationOptions(Source("jsonl", ("a",)), 0.1, tokenizer, 0)
    plan = corpus.plan([Unit(("a",), 0)] * NUM_UNITS, tokenizer)

    def make(task: Task = ALONE) -> Preparation:
        folder = PartialFolder(tmp_path / "out", DEFAULT_TIMEOUTS)
        folder.create()
        return Preparation(corpus, folder, plan, lambda line: None, task)

    return make


def count_calls(monkeypatch: pytest.MonkeyPatch, folder: Path, count: Callable[[int], None]) -> None:
    """Count the calls to a file server having this folder."""

    def counting(function: Callable[..., Any], num_calls: int) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            is_in_folder = str(path).startswith(str(folder))
            if is_in_folder:
                count(1)  # even if it fails
            result = function(path, *arguments, **options)
            if is_in_folder:
                count(num_calls - 1)
            return result

        return call

    def counting_names(function: Callable[..., Any]) -> Callable[..., Any]:
        list_names = os.listdir

        def call(path: Any) -> Any:
            count(3 + len(list_names(path)) // LISTED)
            return function(path)

        return call

    for module, name, num_calls in CALLS_PER_FUNCTION:
        monkeypatch.setattr(module, name, counting(getattr(module, name), num_calls))
    listing_functions = {name: counting_names(getattr(os, name)) for name in ("scandir", "listdir")}
    for name, function in listing_functions.items():
        monkeypatch.setattr(os, name, function)


def finish_three_quarters(folder: PartialFolder) -> None:
    """Finish three quarters of all units, leaving the others in progress on another machine."""
    foreign_lease = elsewhere().content()
    for number in range(NUM_UNITS):
        in_progress = number >= NUM_UNITS // 2 and number % 2 == 1
        if in_progress:
            (folder.path / f"{unit_name(number)}.claim").write_bytes(foreign_lease)
        else:
            folder.unit_folder(number).mkdir()


def simulate(processes: list[Iterator[float]], clock: Clock, seconds: float) -> None:
    """Resume each process when its last pause is over, until the time is up."""
    queue = [(0.0, number) for number in range(len(processes))]
    while queue[0][0] < seconds:
        clock.now, number = heapq.heappop(queue)
        pause = next(processes[number])
        heapq.heappush(queue, (clock.now + pause, number))


@pytest.mark.slow
def test_idle_processes_make_few_calls(
    make_preparation: MakePreparation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When every idle process tried every lease once a second, the file server got 920,000 calls per second."""
    random.seed(0)
    folder = make_preparation().folder
    finish_three_quarters(folder)
    clock = Clock()
    monkeypatch.setattr("megatape.reliability.lease.heartbeat_monitor.time.monotonic", clock)
    step = Step(
        lease_suffix=None,
        count=NUM_UNITS,
        done=lambda: folder.finished(NUM_UNITS),
        is_done=folder.is_finished,
        work=lambda *_: pytest.fail("a unit was taken from its process"),
    )
    processes = [make_preparation().queue.run(step) for _ in range(NUM_WORKERS)]
    calls_by_second = Counter[int]()
    count_calls(monkeypatch, folder.path, lambda number: calls_by_second.update({int(clock.now): number}))

    simulate(processes, clock, seconds=20.0)

    assert sum(calls_by_second.values()) > 20 * NUM_WORKERS, "calls were not counted"
    for begin in range(10):
        assert sum(calls_by_second[second] for second in range(begin, begin + 10)) <= 10 * 10_000
    for second in range(5, 20):
        assert calls_by_second[second] <= 10_000


@pytest.mark.parametrize("index", [0, 1, 2])
def test_machines_start_with_their_own_shares(make_preparation: MakePreparation, index: int) -> None:
    """Once its own share is done, a machine takes units from others, which may be lost."""
    queue = make_preparation(Task(index, 4)).queue
    in_progress = NUM_UNITS
    free = list(range(NUM_UNITS))
    chosen = list(queue.candidates([in_progress, *free], free))

    assert {number % 4 for number in chosen[: NUM_UNITS // 4]} == {index}
    assert sorted(chosen) == list(range(NUM_UNITS))


def test_processes_that_start_together_choose_different_units(make_preparation: MakePreparation) -> None:
    candidates = [NUM_UNITS, *range(NUM_UNITS)]

    chosen = [next(make_preparation().queue.candidates(candidates, range(NUM_UNITS))) for _ in range(20)]

    assert len(set(chosen)) > 15
