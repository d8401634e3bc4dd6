"""Timeouts on a machine with more runnable processes than cores."""

import os
import time

import pytest

from tests.helpers.processes.load import MAX_FACTOR, Deadline, scaled


@pytest.mark.parametrize(("load", "factor"), [(0.0, 1.0), (2.0, 1.0), (8.0, 4.0), (1000.0, MAX_FACTOR)])
def test_a_timeout_scales_with_the_load(load: float, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert scaled(30.0) == 30.0 * factor


def test_a_deadline_follows_the_load_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    load = 2.0
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(time, "monotonic", lambda: now)
    deadline = Deadline(10.0)
    now = 6.0
    assert not deadline.is_over()
    load = 8.0
    now = 18.0  # 12 seconds with four processes per core are 3 seconds on an idle machine.
    assert not deadline.is_over()
    now = 23.0
    assert deadline.is_over()


@pytest.mark.timeout(60)
def test_marks_scale_too(request: pytest.FixtureRequest) -> None:
    """conftest.py puts a scaled mark before the test's own one, for pytest-timeout to read."""
    scaled_mark, own_mark = request.node.iter_markers("timeout")
    assert own_mark.args == (60,)
    assert scaled_mark.args[0] >= 60
