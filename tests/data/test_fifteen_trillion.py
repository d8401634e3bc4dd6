"""15 trillion tokens on paper: forged metadata of 700,000 units and 1.4 million shards. `-s` prints costs and goals."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatape.utils.text.tables import markdown
from tests.helpers.data.fifteen_trillion import forge_index

# Part -> its name, and goals for a process: processor seconds and megabytes. A goal of None: the part runs once.
PARTS: dict[str, tuple[str, float | None, float | None]] = {
    "begin": ("store the plan", None, None),
    "plan": ("a worker reads the plan", 1.0, 100.0),
    "choose": ("a worker chooses 1,000 units", 2.0, 200.0),
    "open": ("a rank opens the data and finds a sample", 1.0, 100.0),
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_processes_start_with_little_memory(tmp_path: Path) -> None:
    """Parsing the index took each rank 14 s and 1.9 GB, and a stat for each shard. Times are printed, not checked."""
    forge_index(tmp_path / "data")
    costs = {part: measure(part, tmp_path) for part in PARTS}

    rows = []
    for part, (name, goal_seconds, goal_megabytes) in PARTS.items():
        cost = costs[part]
        rows.append([name, f"{cost['seconds']:.2f}", _goal(goal_seconds), f"{cost['megabytes']:.0f}", _goal(goal_megabytes)])
    chosen = costs["choose"]
    rows.append(["of these, the first unit", f"{chosen['first_seconds']:.2f}", "1", "", ""])
    rows.append(["of these, each further unit", f"{chosen['seconds_per_unit']:.4f}", "0.001", "", ""])
    print(markdown(["part", "processor seconds", "goal", "MB", "goal"], rows))

    for part, (name, _, goal_megabytes) in PARTS.items():
        if goal_megabytes is not None:
            assert costs[part]["megabytes"] < goal_megabytes, name
    # Two listings are needed: results and leases.
    assert chosen["num_listings"] <= 4


def measure(part: str, folder: Path) -> dict[str, Any]:
    """Run a part in a new process."""
    words = [sys.executable, "-m", "tests.helpers.data.fifteen_trillion", part, str(folder)]
    output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def _goal(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:g}"
