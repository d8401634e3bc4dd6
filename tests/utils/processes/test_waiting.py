"""Waiting ends with the condition, or soon after the timeout."""

import time
from collections.abc import Iterator

import pytest

from megatape.utils.processes import waiting
from megatape.utils.processes.waiting import wait_until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Return a clock that only sleeping advances."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    assert waiting.time is time
    yield now


def test_a_condition_that_is_met_is_not_waited_for(clock: list[float]) -> None:
    assert wait_until(lambda: True, timeout=0.0, interval=9.0)
    assert clock == [0.0]


def test_the_wait_ends_with_the_condition_or_its_time(clock: list[float]) -> None:
    assert wait_until(lambda: clock[0] >= 3.0, timeout=10.0, interval=1.0)
    assert clock == [3.0]
    assert not wait_until(lambda: False, timeout=10.0, interval=4.0)
    assert clock == [15.0]
