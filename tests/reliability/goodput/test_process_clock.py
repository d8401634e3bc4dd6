"""The clock of a process counts every second once, as the right part."""

import os
import subprocess
import sys

import pytest

from megatape.reliability.goodput.parts import TimePart, TimeParts
from megatape.reliability.goodput.process_clock import ClockReading, ProcessClock
from megatape.utils.processes.process_table import seconds_since_boot
from tests.helpers.runs.time_parts import time_parts


class Time:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def make_step(self, clock: ProcessClock, step: int, seconds: float, waited: float = 0.0, is_applied: bool = True) -> None:
        with clock.measure(TimePart.REPEATED_STEPS) as measured:
            self.now += seconds
        clock.finish_step(step, measured.seconds, waited, is_applied)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def clock(time: Time) -> ProcessClock:
    return ProcessClock(time)


def test_inner_blocks_take_their_time_from_outer_ones(clock: ProcessClock, time: Time) -> None:
    clock.begin(TimePart.SETUP)
    time.now += 1
    with clock.measure(TimePart.SAVES) as saving:
        time.now += 2
        with clock.measure(TimePart.VERIFICATION):
            time.now += 4
        time.now += 8
    time.now += 16
    parts = clock.read().parts
    assert parts == time_parts(setup=17, saves=10, verification=4)
    assert saving.seconds == 10


def test_an_error_ends_its_block(clock: ProcessClock, time: Time) -> None:
    with pytest.raises(OSError), clock.measure(TimePart.SAVES):
        time.now += 2
        raise OSError
    time.now += 1
    assert clock.read().parts == time_parts(saves=2, other=1)


def test_steps(clock: ProcessClock, time: Time) -> None:
    """The first step shows its warm-up once the second one is complete. Skipped and unfinished steps are not new."""
    time.make_step(clock, 1, 10.0, waited=1.0)
    assert clock.read().parts == time_parts(compilation=9, data_waits=1)
    time.make_step(clock, 2, 3.0, is_applied=False)
    time.make_step(clock, 3, 2.0)
    time.make_step(clock, 4, 2.5, waited=0.5)
    with clock.measure(TimePart.REPEATED_STEPS):
        time.now += 1.25
        assert clock.read().parts == time_parts(
            new_steps=6, compilation=7, data_waits=1.5, skipped_steps=3, repeated_steps=1.25
        )


def test_a_first_step_that_is_faster_than_the_second_had_no_warm_up(clock: ProcessClock, time: Time) -> None:
    time.make_step(clock, 1, 2.0)
    time.make_step(clock, 2, 3.0)
    assert clock.read().parts == time_parts(new_steps=5)


def test_steps_after_a_checkpoint_that_was_written_in_the_background(clock: ProcessClock, time: Time) -> None:
    for step in range(1, 8):
        time.make_step(clock, step, 2.0)
    assert clock.new_seconds_after(4) == 6.0
    time.make_step(clock, 8, 2.0)
    assert clock.new_seconds_after(8) == 0.0
    time.make_step(clock, 9, 2.0)
    clock.forget_steps()
    assert clock.new_seconds_after(8) == 0.0


def test_a_clock_that_stands_still_or_goes_back_counts_nothing(clock: ProcessClock, time: Time) -> None:
    time.now += 1
    clock.read()
    time.now -= 5
    assert clock.read().parts == time_parts(other=1)
    time.now += 6
    assert clock.read().parts == time_parts(other=2)


def test_the_parts_of_a_command_begin_with_its_launcher() -> None:
    """A process that imports this module has started some time ago, and this process, its parent, earlier."""
    statements = [
        "import os, time",
        "from megatape.reliability.goodput.parts import TimePart",
        "from megatape.reliability.goodput.process_clock import ProcessClock",
        "clock = ProcessClock.of_command(os.getppid())",
        "time.sleep(0.05)",
        "reading = clock.read()",
        "print(reading.parts[TimePart.LAUNCH], reading.parts[TimePart.PROCESS_START], reading.parts[TimePart.IMPORTS])",
        "print(reading.parts.total - (reading.now - reading.began))",
    ]
    before = seconds_since_boot()
    output = subprocess.run([sys.executable, "-c", "\n".join(statements)], capture_output=True, text=True, check=True).stdout
    passed = seconds_since_boot() - before
    launch, process_start, imports, difference = map(float, output.split())
    assert launch > 0
    # The kernel counts starts in hundredths of a second.
    assert 0 < process_start < passed + 0.02
    assert 0.05 <= imports < passed
    assert abs(difference) < 1e-3


def test_time_before_a_process_gets_its_rank_is_not_counted() -> None:
    assigned_at = seconds_since_boot() - 2.0
    clock = ProcessClock.of_rank(assigned_at)
    clock.begin(TimePart.RENDEZVOUS)
    reading = clock.read()
    assert reading.began == assigned_at
    assert reading.parts[TimePart.IMPORTS] == pytest.approx(2.0, abs=0.5)
    assert reading.parts.total == pytest.approx(reading.parts[TimePart.IMPORTS], abs=0.1)


def test_readings_survive_json(clock: ProcessClock, time: Time) -> None:
    time.now += 1.5
    reading = clock.read()
    assert ClockReading.from_json(reading.to_json()) == reading
    assert os.path.exists("/proc/sys/kernel/random/boot_id") == bool(reading.boot)


@pytest.mark.parametrize("value", [None, 3, [], {}, {"process": 1}, {"seconds": 3}])
def test_no_reading(value: object) -> None:
    assert ClockReading.from_json(value) is None


@pytest.mark.parametrize("seconds", ["1", None, True, float("nan"), 1e13])
def test_a_reading_with_a_wrong_number_is_none(clock: ProcessClock, seconds: object) -> None:
    value = clock.read().to_json() | {"seconds": {"saves": seconds}}
    assert ClockReading.from_json(value) is None


def test_parts_of_a_later_version_count_as_other() -> None:
    assert TimeParts.from_json({"saves": 1, "tea breaks": 2}) == time_parts(saves=1, other=2)
