"""States of runs, by their events and the age of their files."""

import os
import time
from pathlib import Path

import pytest

from megatape.lab.report.load import load_runs
from megatape.lab.report.progress import progress
from megatape.reliability.run_log import event_entry
from megatape.utils.json_lines import append_lines
from tests.helpers.runs.report_folders import cut, make_run

CASES: dict[str, tuple[int, list[str], float, str | None]] = {  # state -> steps, events, age in seconds, note
    "training": (12, [], 0, "1 s left"),
    "silent": (12, [], 3600, "last step 1 h ago"),
    "stopped": (12, ["stopped"], 3600, None),
    "failed": (12, ["stopped", "resumed", "failed"], 0, "why failed"),
    "finished": (20, ["finished"], 3600, None),
    "not begun": (0, [], 0, None),
}


@pytest.mark.parametrize("state", CASES)
def test_states(state: str, data_directory: Path, tmp_path: Path) -> None:
    steps, events, age, note = CASES[state]
    folder = make_run(tmp_path / "run", data_directory)
    cut(folder, steps)
    if not steps:
        folder.events.unlink()
    append_lines(folder.events, [event_entry(event, steps, f"why {event}") for event in events])  # type: ignore[arg-type]
    for path in (folder.metrics, folder.events):
        os.utime(path, (time.time() - age,) * 2)
    (one,) = progress(load_runs([folder.directory]))
    assert (one.state, one.note, one.done) == (state, note, steps / 20)
