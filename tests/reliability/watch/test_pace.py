"""Time limits follow from earlier durations, so a slow run is not taken for a hanging one."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from megatape.reliability.watch.pace import FACTOR, MIN_DURATIONS, SHORT_WAIT, WINDOW, Pace, PhaseKind
from megatape.reliability.watch.timeouts import WatchTimeouts
from tests.helpers.processes.clock import Clock

STEP = 60.0
SAVE = 300.0
UNKNOWN = 1800.0


@pytest.fixture
def clock() -> Iterator[Clock]:
    with patch("time.monotonic", Clock()) as clock:
        yield clock


@pytest.fixture
def pace() -> Pace:
    return Pace(WatchTimeouts(step=STEP, long=SAVE, stall=UNKNOWN))


def test_limits_follow_what_was_measured(pace: Pace, clock: Clock) -> None:
    assert pace.phase.timeout == UNKNOWN

    def enter(kind: PhaseKind, seconds: float, size: int = 0) -> float:
        pace.enter(kind, f"a {kind.name}", size)
        clock.now += seconds
        assert pace.phase.name == f"a {kind.name}"
        return pace.phase.timeout

    assert enter(PhaseKind.STEP, 3.0) == UNKNOWN, "the first one allocates and compiles"
    assert enter(PhaseKind.STEP, 3.0) == SAVE, "perhaps on one rank alone, and the second one on another"
    assert enter(PhaseKind.STEP, 3.0) == STEP
    assert enter(PhaseKind.STEP, 900.0) == STEP, "one that was stopped or starved"
    assert enter(PhaseKind.SAVE, 40.0) == UNKNOWN
    assert enter(PhaseKind.SAVE, 40.0) == FACTOR * 40
    assert enter(PhaseKind.STEP, 20.0) == STEP, "saves are measured apart, and one long step changes little"
    assert enter(PhaseKind.SAVE, 1.0) == FACTOR * 40
    assert enter(PhaseKind.STEP, 20.0, size=2) == UNKNOWN, "steps of longer sequences are measured apart"
    for _ in range(WINDOW):
        enter(PhaseKind.STEP, 20.0)
    assert enter(PhaseKind.STEP, 20.0) == FACTOR * 20, "a run that becomes slower"


def test_a_wait_for_files_has_the_long_limit_once_it_lasts(pace: Pace, clock: Clock) -> None:
    for step in range(MIN_DURATIONS + 1):
        pace.enter(PhaseKind.STEP, f"step {step}")
        clock.now += 1.0
    with pace.waiting("the reading of samples"):
        assert pace.phase.timeout == STEP
        clock.now += 2 * SHORT_WAIT
        assert (pace.phase.name, pace.phase.timeout) == ("the reading of samples", UNKNOWN)
    assert (pace.phase.name, pace.phase.timeout) == (f"step {MIN_DURATIONS}", STEP)


def test_one_slow_step_is_not_enough(pace: Pace) -> None:
    for _ in range(WINDOW - 1):
        pace.record_busy(0.3)
    assert pace.busy_share is None
    pace.record_busy(0.9)
    assert pace.busy_share == 0.3


def test_work_in_the_background_is_measured_like_phases(pace: Pace, clock: Clock) -> None:
    """Saves in the background and saves in the main thread share their measured durations."""

    def save(seconds: float) -> float:
        with pace.in_background(PhaseKind.SAVE, "a save"):
            assert pace.background
            assert pace.background.name == "a save"
            clock.now += seconds
            limit = pace.background.timeout
        assert pace.background is None
        return limit

    pace.enter(PhaseKind.STEP, "step 1")
    assert save(50.0) == UNKNOWN
    assert (pace.phase.name, pace.phase.timeout) == ("step 1", UNKNOWN), "the main thread goes on"
    pace.enter(PhaseKind.SAVE, "the last save")
    assert pace.phase.timeout == FACTOR * 50
    with pytest.raises(OSError), pace.in_background(PhaseKind.SAVE, "a failed save"):
        raise OSError
    assert pace.background is None
    assert save(1.0) == FACTOR * 50, "one that failed is not measured"
