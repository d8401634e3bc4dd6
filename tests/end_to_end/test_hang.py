"""When a rank freezes or hangs, all waiting ranks end soon, naming it. Short stops do no harm."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest
import torch
from torch.distributed.distributed_c10d import _get_default_group, _world

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.reliability.watch.pace import MIN_DURATIONS, Pace, PhaseKind
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.run_folder import RunFolder
from megatape.training.pretrain import pretrain
from megatape.training.steps.stepper import Stepper
from megatape.zero.engine import Engine
from tests.helpers.processes.workers import Workers, start_workers
from tests.helpers.runs.run_folders import num_recorded_steps

# Times in seconds. A busy machine may keep a healthy rank from its heartbeat for some seconds.
SHORT = 2.0
SILENCE = 6.0
STEP = 9.0
STALL = 600.0


def start(raw_config: dict[str, Any], folder: Path, num_ranks: int, hang: str | None = None) -> Workers:
    """Start ranks that train for 1000 steps.

    Args:
        raw_config: Configuration.
        folder: Folder for logs.
        num_ranks: Number of ranks.
        hang: What one rank does in its third step, a name in HANGS.
    """
    raw_config["training"]["steps"] = 1000
    payload = {"config": raw_config, "hang": hang}
    return start_workers("tests.end_to_end.test_hang:train", num_ranks, payload, folder)


def train(payload: dict[str, Any], topology: Topology) -> NoReturn:
    hang = payload["hang"]
    if hang is not None and topology.rank == VICTIMS[hang]:
        HANGS[hang](Path(payload["config"]["run"]["directory"]))
    timeouts = WatchTimeouts(period=0.2, silence=SILENCE, suspicion=5.0, step=STEP, stall=STALL, grace=1.0)
    if hang == "save":
        timeouts = replace(timeouts, long=4.0)
    if hang == "frozen":
        timeouts = replace(timeouts, period=5.0, silence=STALL)
    os._exit(pretrain(parse_config(payload["config"], "test"), timeouts=timeouts))


def timeouts_of_groups() -> list[float]:
    """Return the timeouts for all process groups but the default one, in seconds."""
    timeouts = []
    for group in _world.pg_map:
        if group != _get_default_group():
            timeout = group._get_backend(torch.device("cpu")).options._timeout
            timeouts.append(timeout.total_seconds())
    return timeouts


def hang_in_data(folder: Path) -> None:
    exchange_status = Stepper.exchange_status
    count = 0

    def hang(stepper: Stepper, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 4:  # after the third step; the first one has an exchange before it, too
            (folder / "timeouts").write_text(json.dumps(timeouts_of_groups()))
            time.sleep(3600)
        return exchange_status(stepper, *arguments)

    Stepper.exchange_status = hang  # type: ignore[method-assign, assignment]


def hang_in_backward(folder: Path) -> None:
    step = Engine.forward_backward
    count = 0

    def hang(engine: Engine, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            parameter = next(engine.deepspeed_engine.module.parameters())
            parameter.register_hook(lambda gradient: time.sleep(3600))
        return step(engine, *arguments)

    Engine.forward_backward = hang  # type: ignore[method-assign, assignment]


def freeze(folder: Path) -> None:
    """Stop half a second after the first step with a known limit, sooner than the next heartbeat is due."""
    enter = Pace.enter

    def stop(pace: Pace, kind: PhaseKind, name: str, size: int = 0) -> None:
        enter(pace, kind, name, size)
        if name == f"step {MIN_DURATIONS + 1}":
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGSTOP)

    Pace.enter = stop  # type: ignore[method-assign, assignment]


def hang_in_save(folder: Path) -> None:
    """Make the disk hang when writing a tensor file for the third checkpoint."""
    fsync = os.fsync

    def hang(fd: Any) -> None:
        if "step-00000003" in os.readlink(f"/proc/self/fd/{fd}"):
            time.sleep(3600)
        fsync(fd)

    os.fsync = hang


HANGS: dict[str, Callable[[Path], None]] = {
    "data": hang_in_data,
    "backward": hang_in_backward,
    "frozen": freeze,
    "save": hang_in_save,
}
VICTIMS = {"data": 0, "backward": 3, "frozen": 1, "save": 1}  # Where -> the hanging rank


@pytest.fixture
def folder(raw_config: dict[str, Any]) -> RunFolder:
    return RunFolder(Path(raw_config["run"]["directory"]))


def wait_for_steps(workers: Workers, folder: RunFolder, count: int) -> None:
    """Wait until the run has made so many more steps."""
    total = num_recorded_steps(folder) + count
    workers.wait(lambda: not workers.running() or num_recorded_steps(folder) >= total, f"{total} steps", 120)
    assert workers.running() == list(workers.ranks), workers.logs()


@pytest.mark.slow
@pytest.mark.parametrize("hang", ["data", "backward"])
def test_a_rank_that_hangs_is_named(raw_config: dict[str, Any], folder: RunFolder, tmp_path: Path, hang: str) -> None:
    """The rank may be rank 0, or hang in one of DeepSpeed's groups, while others wait for a rank waiting for it."""
    raw_config["parallel"] = {"tp": 2}

    with start(raw_config, tmp_path / "workers", 4, hang) as workers:
        assert workers.statuses(120) == [1, 1, 1, 1], workers.logs()

    victim = VICTIMS[hang]
    for rank in workers.ranks:
        log = workers.logs([rank])
        assert f"error on rank {rank}: rank {victim} (host " in log, log
        assert "hangs in step 3: " in log, log
        assert ("time.sleep(3600)" in log) == (rank == victim), "only the rank that hangs shows where"
        stacks = folder.stacks(rank).read_text()
        assert f" UTC, rank {rank}, host " in stacks, stacks
        assert f", in step 3: rank {victim} (host " in stacks, stacks
        assert " in train_step" in stacks, stacks
        hanging_line = re.search(r"test_hang.py.* in (hang|<lambda>)", stacks)
        assert (hanging_line is not None) == (rank == victim), stacks
    if hang == "data":
        timeouts = json.loads((folder.directory / "timeouts").read_text())
        expected = WatchTimeouts(silence=SILENCE, stall=STALL).collectives.total_seconds()
        assert len(timeouts) >= 2
        assert set(timeouts) == {expected}


def test_a_rank_that_hangs_in_a_background_save_is_named(raw_config: dict[str, Any], folder: RunFolder, tmp_path: Path) -> None:
    """Training continues until the next save is due. Then all ranks' main threads wait alike."""
    raw_config["checkpoint"] = {"interval": 1, "background": True}

    with start(raw_config, tmp_path / "workers", 2, "save") as workers:
        assert workers.statuses(60) == [1, 1], workers.logs()

    for rank in workers.ranks:
        log = (tmp_path / "workers" / f"rank{rank}.log").read_text()
        assert f"error on rank {rank}: rank 1 (host " in log, log
        assert "hangs in the save after step 3 in the background: rank 0 waited" in log, log
        assert ("time.sleep(3600)" in log) == (rank == 1), "only the rank that hangs shows where"
    assert "in hang" in folder.stacks(1).read_text()


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_frozen_rank_is_named_and_a_short_stop_is_survived(
    raw_config: dict[str, Any], folder: RunFolder, tmp_path: Path, victim: int
) -> None:
    other = 1 - victim
    with start(raw_config, tmp_path / "workers", 2) as workers:
        wait_for_steps(workers, folder, 2)
        pid = int((tmp_path / "workers" / f"rank{victim}.pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        time.sleep(SHORT)
        os.kill(pid, signal.SIGCONT)
        wait_for_steps(workers, folder, 3)
        os.kill(pid, signal.SIGSTOP)
        workers.wait(lambda: workers.running() == [victim], "the end of the other rank", 60)

    log = workers.logs([other])
    assert workers.status(other) == 1, log
    assert f"error on rank {other}: rank {victim} " in log, log
    assert "frozen" in log, log
    stacks = folder.stacks(other).read_text()
    assert f": rank {victim} " in stacks
    assert " in train_step" in stacks


@pytest.mark.slow
def test_a_rank_that_freezes_after_its_first_steps_has_the_limit_of_a_step(raw_config: dict[str, Any], tmp_path: Path) -> None:
    with start(raw_config, tmp_path / "workers", 2, "frozen") as workers:
        workers.wait(lambda: workers.running() == [1], "the end of the rank that waits for a frozen one", 120)
        log = workers.logs([0])

    assert workers.status(0) == 1, log
    assert f"no heartbeat for {STEP:.0f} s" in log, log


@pytest.mark.slow
def test_a_stop_of_all_ranks_is_survived(raw_config: dict[str, Any], folder: RunFolder, tmp_path: Path) -> None:
    """Ctrl-Z or a sleeping laptop stops all ranks at once. No rank counts the time during which it could not run."""
    with start(raw_config, tmp_path / "workers", 2) as workers:
        wait_for_steps(workers, folder, 2)
        workers.signal(signal.SIGSTOP)
        time.sleep(SILENCE + 2)
        workers.signal(signal.SIGCONT)
        wait_for_steps(workers, folder, 3)


def test_the_timeouts_keep_the_promise() -> None:
    """With steps of up to 5 s, all ranks have ended two minutes after one of them hangs."""
    timeouts = WatchTimeouts()
    pace = Pace(timeouts)
    now = 0.0
    with patch("time.monotonic", lambda: now):
        for step in range(1, 6):
            pace.enter(PhaseKind.STEP, f"step {step}")
            now += 5.0
    # A heartbeat is missed, then noticed.
    time_to_notice = 3 * timeouts.period
    # Ranks write their stacks, then exit.
    time_to_end = 2 * timeouts.grace
    assert pace.phase.timeout + time_to_notice + time_to_end < 120


def test_the_watch_speaks_before_torch() -> None:
    """Collectives time out last: torch then ends a rank without naming the one at fault."""
    timeouts = WatchTimeouts()
    assert timeouts.collectives >= timedelta(seconds=timeouts.stall + timeouts.grace)
