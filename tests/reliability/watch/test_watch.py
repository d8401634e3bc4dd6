"""If one rank fails while the others wait for it, they exit too, and say which rank failed and why."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megatape.distributed.topology import Topology
from megatape.reliability.watch.heartbeat import BACKGROUND_GROUP, parse_heartbeat
from megatape.reliability.watch.pace import MIN_DURATIONS, SHORT_WAIT, PhaseKind
from megatape.reliability.watch.rank_errors import RankFailed
from megatape.reliability.watch.timeouts import WatchTimeouts, timeouts_of_environment
from megatape.reliability.watch.watch import Watch, watch_ranks
from megatape.utils.pytorch import torch_internals
from tests.helpers.processes.command import Command
from tests.helpers.processes.strangers import pretend_success
from tests.helpers.processes.waiting import wait_until
from tests.helpers.processes.workers import run_workers

TIMEOUTS = WatchTimeouts(period=0.2, silence=20.0, suspicion=2.0, grace=5.0)


def test_a_rank_that_fails_alone(tmp_path: Path) -> None:
    results = run_workers("tests.reliability.watch.test_watch:fail_on_one", 3, None, tmp_path, timeout=90)
    assert results[1] == "ValueError: its disk is full"
    for rank in (0, 2):
        assert results[rank].startswith("RankFailed: rank 1 failed: ValueError: its disk is full"), results[rank]


def fail_on_one(_: Any, topology: Topology) -> str:
    return watched(topology, ValueError("its disk is full"))


def test_a_network_that_fails(tmp_path: Path) -> None:
    """No rank is accused when a collective fails although all are alive."""
    results = run_workers("tests.reliability.watch.test_watch:fail_in_collective", 3, None, tmp_path, timeout=90)
    for result in results:
        assert result.startswith("RankFailed: all ranks are alive, but a collective failed"), result
        assert "rank 1: RuntimeError: gloo: connection lost" in result


def fail_in_collective(_: Any, topology: Topology) -> str:
    return watched(topology, RuntimeError("gloo: connection lost"))


def test_a_rank_that_leaves_late(tmp_path: Path) -> None:
    """Rank 0 holds the store, so it leaves last: the others do not take its end for a failure."""
    results = run_workers("tests.reliability.watch.test_watch:leave_late", 3, None, tmp_path, timeout=90)
    assert results == ["no error"] * 3


def leave_late(_: Any, topology: Topology) -> str:
    with Watch(topology, WatchTimeouts(period=0.1, silence=20.0, grace=0.2)):
        dist.all_reduce(torch.ones(1))
        if topology.rank == 1:
            time.sleep(1.5)
    return "no error"


@pytest.mark.parametrize("signed", [True, False])
def test_a_stranger_cannot_end_the_ranks_as_complete(tmp_path: Path, signed: bool) -> None:
    """A client of the store that is not a rank sets the verdict, with status 0.

    Ranks with a shared secret ignore this verdict and can still write theirs. Before they share a secret, the run ends with the
    status of a failure.
    """
    results = run_workers("tests.reliability.watch.test_watch:meet_a_stranger", 2, signed, tmp_path, timeout=90)
    if signed:
        assert results[0][0].startswith("RankFailed: rank 1 failed: ValueError: its disk is full"), results
        assert results[1] == ["ValueError: its disk is full", 1]
    else:
        for text, status in results:
            assert text.startswith("RankFailed: all is well")
            assert status == 1


def meet_a_stranger(signed: bool, topology: Topology) -> list[Any]:
    """Fail on rank 1 some time after a stranger's verdict. Return the error that ends this rank, and its status."""
    try:
        with Watch(topology, replace(TIMEOUTS, period=0.1)) as watch:
            if signed:
                watch.authenticate(b"a secret")
            dist.all_reduce(torch.ones(1))
            if topology.is_main:
                pretend_success(int(os.environ["MASTER_PORT"]))
            dist.all_reduce(torch.ones(1))
            time.sleep(0.5)
            if topology.rank == 1:
                raise ValueError("its disk is full")
            dist.all_reduce(torch.ones(1))
    except (ValueError, RankFailed) as error:
        dist.destroy_process_group()
        return [f"{type(error).__name__}: {error}", int(getattr(error, "status", 1))]
    return ["no error", 0]


def test_a_single_rank_needs_no_process_group_and_no_threads(tmp_path: Path) -> None:
    before = threading.active_count()
    with watch_ranks(Topology(0, 1, 0), TIMEOUTS, tmp_path / "stacks") as watch:
        watch.authenticate(b"a secret")
        watch.pace.enter(PhaseKind.STEP, "step 1")
        assert threading.active_count() == before
    assert watch.pace.phase.name == "step 1"


class Store(dict[str, str]):
    """Fake store with the methods used by the watch while it reads no messages."""

    set = dict.__setitem__


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def watch(store: Any) -> Iterator[Watch]:
    """Watch of rank 1, whose heartbeats are an hour apart."""
    with Watch(Topology(1, 2, 1), WatchTimeouts(period=3600.0), open_store=lambda: store) as watch:
        yield watch


def wait_for_beat(store: Store, phase: str) -> None:
    wait_until(lambda: phase in store.get("watch/heartbeat/1", ""), f"a heartbeat with the shorter limit of {phase}", 10)
    heartbeat = parse_heartbeat(json.loads(store["watch/heartbeat/1"]))
    assert heartbeat.main.timeout == WatchTimeouts().step


def test_a_shorter_limit_is_told_at_once(store: Store, watch: Watch) -> None:
    """A rank freezing soon after is judged by the limit of a step, not by that of the start or of a wait for files."""
    for step in range(MIN_DURATIONS + 1):
        watch.pace.enter(PhaseKind.STEP, f"step {step}")
    wait_for_beat(store, f"step {MIN_DURATIONS}")
    store.clear()
    with watch.pace.waiting("a short read"):
        pass
    with watch.pace.waiting("a long read"):
        time.sleep(1.1 * SHORT_WAIT)
    wait_for_beat(store, f"step {MIN_DURATIONS}")


def test_an_error_of_the_watch_itself(caplog: pytest.LogCaptureFixture) -> None:
    """The error is reported with its traceback, neither as the end of rank 0 nor as a stranger's message."""

    class BrokenStore(dist.HashStore):
        def check(self, keys: list[str]) -> bool:
            raise TypeError("a mistake of ours")

    timeouts = WatchTimeouts(period=0.05, silence=10.0, grace=5.0)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with (
            pytest.raises(RankFailed, match="rank 1 failed: TypeError: a mistake of ours"),
            Watch(Topology(1, 2, 1), timeouts, open_store=BrokenStore),
        ):
            raise dist.DistBackendError("a collective failed")
    finally:
        # The watch ignores the signal from the error on.
        signal.signal(signal.SIGTERM, handler)
    assert "the watch of rank 1 failed" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("minutes", ["abc", "-5", "0", "", "1.5", "9" * 12])
@pytest.mark.parametrize("name", ["pretrain", "preflight"])
def test_a_timeout_that_is_none(
    name: str, minutes: str, monkeypatch: pytest.MonkeyPatch, command: Command, raw_config: dict[str, Any], tmp_path: Path
) -> None:
    """The error is one line, and comes before importing DeepSpeed, which reads the variable and would fail."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    monkeypatch.setenv("DEEPSPEED_TIMEOUT", minutes)
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.delitem(sys.modules, "megatape.training.pretrain", raising=False)
    monkeypatch.delitem(sys.modules, "megatape.tools.cluster.preflight.preflight", raising=False)
    status, _, errors = command(name, "--config", config)
    assert status == 2, errors
    assert errors.startswith(f"error: DEEPSPEED_TIMEOUT is {minutes!r}: give whole minutes from 1 to "), errors


def test_the_timeout_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSPEED_TIMEOUT", "60")
    assert timeouts_of_environment() == WatchTimeouts(step=3600.0, long=3600.0, stall=3600.0)
    monkeypatch.delenv("DEEPSPEED_TIMEOUT")
    assert timeouts_of_environment() == WatchTimeouts()


def watched(topology: Topology, error: Exception) -> str:
    """Raise an error on rank 1 while the others wait in a collective. Return the error that ends this rank."""
    try:
        with Watch(topology, TIMEOUTS):
            dist.all_reduce(torch.ones(1))
            if topology.rank == 1:
                raise error
            dist.all_reduce(torch.ones(1))
    except (ValueError, RankFailed) as ended_by:
        dist.destroy_process_group()
        return f"{type(ended_by).__name__}: {ended_by}"
    return "no error"


def count_collectives(payload: None, topology: Topology) -> list[list[int]]:
    """Run a collective in a background group, then one in training's. Return the counts (training, background) after each."""
    beside = dist.new_group(backend="gloo", group_desc=BACKGROUND_GROUP)
    counts = [torch_internals.count_collectives(BACKGROUND_GROUP)]
    for group in (beside, None):
        dist.all_reduce(torch.zeros(1), group=group)
        counts.append(torch_internals.count_collectives(BACKGROUND_GROUP))
    return [[count - first for count, first in zip(each, counts[0], strict=True)] for each in counts]


def test_saves_in_the_background_count_apart(tmp_path: Path) -> None:
    """A rank that is ahead in a save does not seem to wait for the others' step."""
    expected = [[0, 0], [0, 1], [1, 1]]
    assert run_workers("tests.reliability.watch.test_watch:count_collectives", 1, None, tmp_path) == [expected]
