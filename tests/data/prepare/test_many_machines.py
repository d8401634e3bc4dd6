"""Work of many machines on one folder: they begin with their own shares, and idle ones do not burden its file system."""

import heapq
import io
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatape.data.prepare.folder import PartialFolder, unit_name
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.preparation import Preparation
from megatape.data.prepare.task import Task
from megatape.data.prepare.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.prepare.work_queue import Step
from megatape.data.sources.source import Source
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.reliability.lease.holder import this_process

# LISTED: names that a server sends at a time, 500 of 1800
NUM_UNITS = 600
NUM_WORKERS = 512
LISTED = 170


@pytest.fixture
def preparation(tmp_path: Path, tokenizer: Tokenizer) -> Callable[..., Preparation]:
    """Makes the preparation of one process of many."""
    corpus = PreparationOptions(Source("jsonl", ("a",)), 0.1, tokenizer, 0)

    def make(task: Task = Task()) -> Preparation:  # noqa: B008
        folder = PartialFolder(tmp_path / "out", DEFAULT_TIMEOUTS)
        folder.create()
        return Preparation(corpus, folder, [Unit(("a",), 0)] * NUM_UNITS, lambda line: None, task)

    return make


def count_calls(monkeypatch: pytest.MonkeyPatch, folder: Path, count: Callable[[int], None]) -> None:
    """Count what is asked of the file system that has the folder."""
    for module, name, calls in [(os, "stat", 1), (os, "unlink", 1), (os, "utime", 1), (os, "open", 2), (io, "open", 3)]:
        call = getattr(module, name)

        def counted(path: Any, *arguments: Any, call: Any = call, calls: int = calls, **rest: Any) -> Any:
            is_there = str(path).startswith(str(folder))
            count(is_there)
            found = call(path, *arguments, **rest)
            count(is_there * (calls - 1))
            return found

        monkeypatch.setattr(module, name, counted)
    for name in ("scandir", "listdir"):

        def listed(path: Any, listing: Any = getattr(os, name), names: Any = os.listdir) -> Any:  # noqa: B008
            count(3 + len(names(path)) // LISTED)
            return listing(path)

        monkeypatch.setattr(os, name, listed)


@pytest.mark.slow
def test_calls_of_idle_processes(
    preparation: Callable[..., Preparation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try of every lease every second, by every idle process, was 920,000 calls a second."""
    random.seed(0)
    folder = preparation().folder
    clock = [0.0]
    for number in range(NUM_UNITS):
        if number < NUM_UNITS // 2:
            folder.unit_folder(number).mkdir()
        elif number % 2:  # half of the others are in progress elsewhere, and half of that finished
            (folder.path / f"{unit_name(number)}.claim").write_bytes(replace(this_process(), machine="other").content())
        else:
            folder.unit_folder(number).mkdir()
    calls = Counter[int]()
    monkeypatch.setattr("megatape.reliability.lease.heartbeat_monitor.time.monotonic", lambda: clock[0])
    step = Step(
        lease_suffix=None,
        count=NUM_UNITS,
        done=lambda: folder.finished(NUM_UNITS),
        work=lambda *_: pytest.fail("a unit was taken from its process"),
    )
    rounds = [preparation().queue.run(step) for _ in range(NUM_WORKERS)]
    count_calls(monkeypatch, folder.path, lambda number: calls.update({int(clock[0]): number}))
    times = [(0.0, number) for number in range(NUM_WORKERS)]
    while times[0][0] < 20.0:
        clock[0], number = heapq.heappop(times)
        heapq.heappush(times, (clock[0] + next(rounds[number]), number))
    assert sum(calls.values()) > 20 * NUM_WORKERS  # they are counted
    assert max(sum(calls[second] for second in range(begin, begin + 10)) for begin in range(10)) <= 10 * 10_000
    assert max(calls[second] for second in range(5, 20)) <= 10_000


def test_processes_begin_with_their_shares(preparation: Callable[..., Preparation]) -> None:
    """No two machines try the same unit, until the share of one is done; then it does those of another, which may be lost."""
    for index in range(3):
        queue = preparation(Task(index, 4)).queue
        free = list(range(NUM_UNITS))
        tried = []
        while free:
            tried.append(queue.choose([NUM_UNITS, *free], free))  # one unit is in progress elsewhere
            free.remove(tried[-1])
        assert {number % 4 for number in tried[: NUM_UNITS // 4]} == {index}
        assert sorted(tried) == list(range(NUM_UNITS))
    first = [preparation().queue.choose([NUM_UNITS, *range(NUM_UNITS)], range(NUM_UNITS)) for _ in range(20)]
    assert len(set(first)) > 15  # of processes that began at the same time
