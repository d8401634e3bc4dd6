"""Telling a run's state from its events and its files' age."""

import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from megatape.lab.report.load import load_runs
from megatape.lab.report.progress import progress
from megatape.reliability.run_log import Event, event_entry
from megatape.utils.files.json_lines import append_lines
from tests.helpers.runs.report_folders import cut, make_run


class StateCase(NamedTuple):
    """A run of 20 steps.

    Attributes:
        state: Expected state.
        note: Expected note.
        steps: Steps so far.
        events: Events after the first start, in order.
        age: Seconds since its files last changed.
    """

    state: str
    note: str | None
    steps: int
    events: list[Event]
    age: float


@pytest.mark.parametrize(
    "case",
    [
        StateCase("training", "1 s left", steps=12, events=[], age=0),
        StateCase("silent", "last step 1 h ago", steps=12, events=[], age=3600),
        StateCase("stopped", None, steps=12, events=["stopped"], age=3600),
        StateCase("failed", "why failed", steps=12, events=["stopped", "resumed", "failed"], age=0),
        StateCase("finished", None, steps=20, events=["finished"], age=3600),
        StateCase("not begun", None, steps=0, events=[], age=0),
    ],
    ids=lambda case: case.state,
)
def test_states(case: StateCase, data_directory: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", data_directory)
    cut(folder, case.steps)
    if case.steps == 0:
        folder.events.unlink()
    append_lines(folder.events, [event_entry(event, case.steps, f"why {event}") for event in case.events])
    changed = time.time() - case.age
    for path in (folder.metrics, folder.events):
        os.utime(path, (changed, changed))

    (run_progress,) = progress(load_runs([folder.directory]))

    assert run_progress.state == case.state
    assert run_progress.note == case.note
    assert run_progress.done == case.steps / 20
