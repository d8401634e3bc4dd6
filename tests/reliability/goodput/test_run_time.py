"""The parts of a run's time add up to the wall time, and only steps that the run keeps are new."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatape.reliability.goodput.parts import PARTS, TimePart, TimeParts
from megatape.reliability.goodput.process_clock import ClockReading
from megatape.reliability.goodput.read import read_run_time
from megatape.reliability.goodput.run_costs import run_costs
from megatape.reliability.goodput.run_time import RunTime
from megatape.run_folder import RunFolder
from megatape.utils.files.json_lines import append_lines
from tests.helpers.runs.time_parts import time_parts


class History:
    """Writes the events of a run whose steps take 2 s each, and which starts in 10 s.

    Args:
        wall: Wall-clock time at the start.
    """

    def __init__(self, wall: float = 5e8) -> None:
        self.entries: list[dict[str, Any]] = []
        self.now = 100.0
        self.boot = "boot"
        # Difference between wall-clock time and time since boot, changed by setting the clock
        self.offset = wall - self.now
        self.step = 0
        self._num_processes = 0
        self._reading = ClockReading("", "", 0, 0, TimeParts())

    def record(self, event: str, **facts: Any) -> None:
        reading = replace(self._reading, now=self.now)
        time = self.now + self.offset
        self.entries.append({"time": time, "event": event, "step": self.step, "clock": reading.to_json()} | facts)

    def pass_time(self, part: str, seconds: float) -> None:
        self._reading.parts[PARTS[part]] += seconds
        self.now += seconds

    def start(self, step: int = 0, event: str = "resumed", **facts: Any) -> None:
        self._num_processes += 1
        self._reading = ClockReading(str(self._num_processes), self.boot, self.now, self.now, TimeParts())
        self.step = step
        self.pass_time("imports", 10.0)
        self.record(event, **facts)

    def make_steps(self, number: int) -> None:
        for _ in range(number):
            self.pass_time("new_steps", 2.0)
            self.step += 1

    def save(self, unsaved_steps: int = 0) -> None:
        self.pass_time("saves", 1.0)
        self.record("checkpoint", saved_step=self.step - unsaved_steps, unsaved_seconds=2.0 * unsaved_steps)

    def read(self, **step_seconds: Any) -> RunTime:
        run_time = RunTime(**step_seconds)
        for entry in self.entries:
            run_time.add(json.loads(json.dumps(entry)))
        return run_time


@pytest.fixture
def history() -> History:
    return History()


def test_an_undisturbed_run(history: History) -> None:
    history.start(event="started")
    history.make_steps(5)
    history.save()
    history.record("finished")
    run_time = history.read()
    assert run_time.parts == time_parts(imports=10, new_steps=10, saves=1)
    assert run_time.parts.goodput == 10 / 21
    assert (run_time.num_starts, run_time.num_saves, run_time.num_rollbacks, run_time.kept_steps) == (1, 1, 0, 5)
    assert run_time.has_ended


def test_steps_after_the_checkpoint_are_undone_by_a_kill(history: History) -> None:
    """The run is killed 2.5 steps after its last event. Its last line of metrics is 30 s older than the next start."""
    history.start(event="started")
    history.make_steps(4)
    history.save()
    history.make_steps(3)
    history.record("spike")
    history.now += 2 * 2.0 + 1.0 + 29.0
    history.start(4, idle=30.0)
    history.make_steps(6)
    history.record("finished")
    parts = history.read().parts
    assert parts == time_parts(new_steps=8 + 12, repeated_steps=6 + 4, saves=1, imports=20, down=30)
    assert parts.total == history.now - 100.0


def test_a_second_command_starts_before_the_end_of_the_first(history: History) -> None:
    """A second command waits, or starts to import, while the first one finishes. Each second counts once."""
    history.start(event="started")
    history.make_steps(5)
    history.record("finished")
    history.now -= 8.0
    history.start(5)
    history.record("finished")
    parts = history.read().parts
    assert parts == time_parts(imports=10 + 2, new_steps=10)
    assert parts.total == history.now - 100.0


def test_a_background_save_keeps_no_later_step(history: History) -> None:
    history.start(event="started")
    history.make_steps(6)
    history.save(unsaved_steps=2)
    history.record("failed")
    history.now += 5.0
    history.start(4)
    history.record("finished")
    assert history.read().parts == time_parts(new_steps=8, repeated_steps=4, saves=1, imports=20, down=5)


def test_an_older_checkpoint_undoes_more(history: History) -> None:
    """The newest checkpoint was corrupted, and the event of the one before was never written."""
    history.start(event="started")
    history.make_steps(2)
    history.save()
    history.make_steps(4)
    history.save()
    history.record("failed")
    history.start(4)
    history.record("stopped")
    parts = history.read().parts
    assert (parts[TimePart.NEW_STEPS], parts[TimePart.REPEATED_STEPS]) == (8.0, 4.0)


def test_a_run_without_a_checkpoint_begins_again(history: History) -> None:
    history.start(event="started")
    history.make_steps(3)
    history.record("failed")
    history.start(0, event="started")
    history.make_steps(2)
    history.record("stopped")
    parts = history.read().parts
    assert (parts[TimePart.NEW_STEPS], parts[TimePart.REPEATED_STEPS]) == (4.0, 6.0)


def test_a_rollback(history: History) -> None:
    """A rollback also undoes steps of an earlier process. The steps that it leaves out count as skipped."""
    history.start(event="started")
    history.make_steps(4)
    history.save()
    history.make_steps(2)
    history.save()
    history.record("stopped")
    history.start(6)
    history.make_steps(3)
    history.pass_time("weights", 1.5)
    history.step = 4
    history.record("rollback")
    history.pass_time("skipped_steps", 0.5)
    history.step = 9
    history.make_steps(1)
    history.save()
    history.record("finished")
    run_time = history.read()
    assert run_time.num_rollbacks == 1
    assert run_time.parts == time_parts(new_steps=10, repeated_steps=10, skipped_steps=0.5, weights=1.5, saves=3, imports=20)
    assert run_time.parts.total == history.now - 100.0


def test_the_clock_is_set_back(history: History) -> None:
    """Setting the clock back by an hour, within a process and between two, changes no time."""
    history.start(event="started")
    history.make_steps(4)
    history.offset -= 3600.0
    history.save()
    history.record("failed")
    history.now += 7.0
    history.offset -= 3600.0
    history.start(4)
    history.make_steps(1)
    history.record("finished")
    parts = history.read().parts
    assert parts == time_parts(new_steps=10, saves=1, imports=20, down=7)


def test_another_machine_goes_by_wall_clock_time(history: History) -> None:
    history.start(event="started")
    history.record("failed")
    history.now += 40.0
    history.boot = "another boot"
    history.start(0)
    assert history.read().parts == time_parts(imports=20, down=40)

    history.offset -= 3600.0
    history.boot = "a third boot"
    history.record("failed")
    history.start(0)
    assert history.read().parts[TimePart.DOWN] == 40, "a negative time counts as 0"


def test_a_launcher_that_starts_a_run_again_is_older_than_the_end_before(history: History) -> None:
    history.start(event="started")
    history.record("failed")
    history.now -= 6.0
    history._reading = ClockReading("2", "boot", history.now, history.now, TimeParts())
    history.pass_time("launch", 8.0)
    history.record("resumed")
    assert history.read().parts == time_parts(imports=10, launch=2)
    history.pass_time("imports", 1.0)
    history.record("stopped")
    assert history.read().parts == time_parts(imports=11, launch=2)


def test_goodput_while_a_process_trains(history: History) -> None:
    history.start(event="started")
    run_time = history.read()
    history.make_steps(3)
    reading = replace(history._reading, now=history.now)
    assert run_time.goodput_at(reading) == pytest.approx(6 / 16)
    history.record("failed")
    history.start(0)
    run_time = history.read()
    history.make_steps(2)
    reading = replace(history._reading, now=history.now)
    assert run_time.goodput_at(reading) == pytest.approx(4 / 30)


def test_costs(history: History) -> None:
    """A restart costs its detection, the time without a process, and the start. Half a step is no detection."""
    history.start(event="started")
    history.make_steps(4)
    history.save()
    history.make_steps(2)
    history.pass_time("repeated_steps", 6.0)
    history.record("failed")
    history.now += 3.0
    history.start(4)
    history.make_steps(4)
    history.save()
    history.record("finished")
    costs = run_costs(history.read())
    assert costs.step_seconds == 2.0
    assert costs.save_seconds == 1.0
    assert costs.restart_seconds == 5.0 + 3.0 + 10.0


def write(folder: RunFolder, entries: list[dict[str, Any]], steps: int) -> None:
    folder.directory.mkdir(exist_ok=True)
    append_lines(folder.events, entries)
    append_lines(folder.metrics, [{"step": step, "seconds": 2.0} for step in range(1, steps + 1)])


def earlier_entries() -> Iterator[dict[str, Any]]:
    """Events of version 0.2: two starts, the second from the checkpoint of step 4."""
    yield {"time": 1000.0, "event": "started", "step": 0, "detail": "1 rank on cpu"}
    yield {"time": 1012.0, "event": "checkpoint", "step": 4, "detail": "step-00000004, training waited 1.500 s"}
    yield {"time": 1020.0, "event": "failed", "step": 7, "detail": "killed"}
    yield {"time": 1050.0, "event": "resumed", "step": 4, "detail": "1 rank on cpu"}
    yield {"time": 1070.0, "event": "finished", "step": 10, "detail": ""}


def test_a_run_of_an_earlier_version(tmp_path: Path) -> None:
    """Earlier versions recorded no times: steps are counted in metrics.jsonl, and time passes between events."""
    folder = RunFolder(tmp_path / "run")
    write(folder, list(earlier_entries()), steps=10)
    run_time = read_run_time(folder)
    assert run_time.parts == time_parts(new_steps=20, saves=1.5, down=30, other=20 - 8 - 1.5 + 20 - 12)
    assert run_time.parts.total == 70.0
    assert run_costs(run_time).restart_seconds is None


def test_a_run_that_an_earlier_version_began(tmp_path: Path, history: History) -> None:
    history.offset = 1100.0 - history.now
    history.start(10)
    history.make_steps(2)
    history.record("finished")
    folder = RunFolder(tmp_path / "run")
    write(folder, [*earlier_entries(), *history.entries], steps=12)
    run_time = read_run_time(folder)
    assert run_time.parts[TimePart.NEW_STEPS] == 24.0
    assert run_time.parts.total == 114.0
    assert run_time.parts[TimePart.DOWN] == 60.0


def test_lines_of_metrics_after_the_last_event_count(tmp_path: Path, history: History) -> None:
    history.start(event="started")
    history.make_steps(3)
    history.save()
    folder = RunFolder(tmp_path / "run")
    write(folder, history.entries, steps=5)
    run_time = read_run_time(folder)
    assert run_time.parts[TimePart.NEW_STEPS] == 10.0
    assert run_time.kept_steps == 5


@pytest.mark.parametrize(
    "damage",
    [
        {"time": "x"},
        {"step": None},
        {"event": None, "time": None},
        {"clock": {"process": "1"}},
        {"clock": 7, "idle": "x"},
        {"saved_step": "x"},
        {"unsaved_seconds": None},
    ],
)
def test_a_changed_line_does_no_harm(history: History, damage: dict[str, Any]) -> None:
    history.start(event="started")
    history.make_steps(2)
    history.save()
    history.start(2, idle=0)
    history.record("finished")
    for entry in history.entries:
        original = dict(entry)
        entry |= damage
        parts = history.read().parts
        assert 0 <= parts[TimePart.NEW_STEPS] <= parts.total <= 2 * (history.now - 100.0)
        entry.clear()
        entry |= original


def test_a_folder_without_events(tmp_path: Path) -> None:
    run_time = read_run_time(RunFolder(tmp_path))
    assert not run_time.processes
    assert run_time.parts.goodput is None
    assert run_time.goodput_at(ClockReading("", "", 0, 1, TimeParts())) is None
