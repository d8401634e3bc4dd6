"""A run's time by part, compared with measurements from outside, killing and resuming it in between."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.reliability.goodput.parts import TimePart
from megatape.reliability.goodput.read import read_run_time
from megatape.reliability.goodput.run_time import RunTime
from megatape.run_folder import RunFolder
from tests.helpers.processes.command import Command, assert_refused
from tests.helpers.processes.workers import Workers
from tests.helpers.runs.run_folders import num_recorded_steps, read_entries
from tests.helpers.runs.small_run import small_config

STEPS = 60
INTERVAL = 8
# Steps before killing the run, 4 or more after a checkpoint
KILLED_AFTER = 20


class KilledRun(NamedTuple):
    """A run that was killed and resumed.

    Attributes:
        folder: Run directory.
        started: When the first main rank started, in seconds since 1970.
        restarted: When the second one started.
    """

    folder: RunFolder
    started: float
    restarted: float


@pytest.fixture(scope="module")
def run(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledRun]:
    """Train on two ranks, kill them with SIGKILL, and resume."""
    root = tmp_path_factory.mktemp("goodput")
    folder = RunFolder(root / "run")
    config = small_config(data_directory, folder.directory)
    config["training"] |= {"steps": STEPS}
    config["checkpoint"] = {"interval": INTERVAL}
    config["evaluation"]["interval"] = 25
    path = root / "config.json"
    path.write_text(json.dumps(config))
    words = ["pretrain", "--config", str(path), "--resume", "auto"]
    with Workers(words, 2, root / "first") as workers:
        workers.wait(lambda: num_recorded_steps(folder) >= KILLED_AFTER, "some steps", 90)
        started = start_of_main_rank(root / "first")
        workers.signal(signal.SIGKILL)
    with Workers(words, 2, root / "second") as workers:
        workers.wait(lambda: (root / "second" / "rank0.pid").exists(), "the main rank", 90)
        restarted = start_of_main_rank(root / "second")
        assert workers.statuses() == [0, 0], workers.logs()
    yield KilledRun(folder, started, restarted)


def start_of_main_rank(logs: Path) -> float:
    """Return when the process was forked and its id was written."""
    return (logs / "rank0.pid").stat().st_mtime


@pytest.fixture(scope="module")
def run_time(run: KilledRun) -> RunTime:
    return read_run_time(run.folder)


def test_parts_add_up_to_wall_time(run: KilledRun, run_time: RunTime) -> None:
    """The parts add up to the wall time from the start of the first process to the last event, within 1%.

    The bound allows 0.1 s between the fork and the time noted for it.
    """
    last_event = read_entries(run.folder.events)[-1]
    assert last_event["event"] == "finished"
    wall_time = last_event["time"] - run.started
    assert run_time.parts.total == pytest.approx(wall_time, rel=0.01, abs=0.1)
    # Each line in the report has a part, and none is negative.
    assert min(run_time.parts.seconds.values()) >= 0


def test_the_remainder_is_small(run_time: RunTime) -> None:
    """Steps of this model take milliseconds, so the loop around them is a larger share than in any real run."""
    assert run_time.parts[TimePart.OTHER] < 0.1 * run_time.parts.total
    assert run_time.parts[TimePart.OTHER] < 0.5 * run_time.parts[TimePart.NEW_STEPS]


def test_lost_steps_are_not_new(run: KilledRun, run_time: RunTime) -> None:
    """At least four steps after the last checkpoint were lost and repeated, and do not count as new."""
    events = read_entries(run.folder.events)
    (resumed,) = [event for event in events if event["event"] == "resumed"]
    assert resumed["step"] < KILLED_AFTER
    assert run_time.num_starts == 2
    assert run_time.kept_steps == STEPS
    assert run_time.parts[TimePart.REPEATED_STEPS] > 0
    seconds_of_kept_steps = sum(entry["seconds"] for entry in read_entries(run.folder.metrics))
    # Lines count waiting for data and warming up as parts of their steps.
    assert 0.3 * seconds_of_kept_steps < run_time.parts[TimePart.NEW_STEPS] < 1.05 * seconds_of_kept_steps


def test_all_parts_are_measured(run_time: RunTime) -> None:
    not_expected = {TimePart.LAUNCH, TimePart.SKIPPED_STEPS}
    missing = [part for part, seconds in run_time.parts.seconds.items() if seconds == 0 and part not in not_expected]
    assert missing == []


def test_the_time_without_a_process(run: KilledRun, run_time: RunTime) -> None:
    """Down time lasts from the last line written by the killed process until the next one starts."""
    first, second = run_time.processes
    assert first.parts[TimePart.DOWN] == 0
    assert 0 < second.parts[TimePart.DOWN] < run.restarted - run.started
    second_start = read_entries(run.folder.events)[-1]["time"] - second.parts.total + second.parts[TimePart.DOWN]
    assert second_start == pytest.approx(run.restarted, abs=0.2)


def test_the_command(run: KilledRun, run_time: RunTime, command: Command) -> None:
    status, text, errors = command("ledger", "--time", run.folder.directory)
    assert status == 0, errors
    assert f"goodput:   {run_time.parts.goodput:.1%}" in text
    assert "2 starts" in text
    for label in ("new steps", "steps made twice or undone", "other", "mean of 1 restart"):
        assert f"\n{label} " in text


def test_the_report(run: KilledRun, run_time: RunTime, command: Command, tmp_path: Path) -> None:
    status, _, errors = command("report", run.folder.directory, "--output", tmp_path / "report")
    assert status == 0, errors
    page = (tmp_path / "report" / "index.html").read_text()
    assert f"({run_time.parts.goodput:.1%})" in page
    assert "steps made twice or undone" in page


def test_the_metric(run: KilledRun, run_time: RunTime) -> None:
    """TensorBoard's first value is low, because hardly any time was spent on steps. The last one precedes the last save."""
    values = tensorboard_values(run.folder, "speed/goodput")
    assert values[1] < 0.05
    assert values[STEPS] == pytest.approx(run_time.parts.goodput, rel=0.1)


def tensorboard_values(folder: RunFolder, tag: str) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator: Any = EventAccumulator(str(folder.tensorboard))
    accumulator.Reload()
    return {scalar.step: scalar.value for scalar in accumulator.Scalars(tag)}


def test_a_folder_without_events_is_refused(run: KilledRun, command: Command, tmp_path: Path) -> None:
    assert_refused(command("ledger", "--time", tmp_path), "events.jsonl has no event")
