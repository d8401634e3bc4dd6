"""Running a benchmark's parts: failures, time limits, and earlier results."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatape.errors import UserError
from megatape.lab.benchmark.gpu.results import ResultLine, read_results
from tests.helpers.lab.benchmark_parts import part, run
from tests.helpers.processes.load import scaled
from tests.helpers.processes.waiting import has_ended, wait_until
from tests.helpers.processes.workers import ROOT


@pytest.fixture(autouse=True)
def importable_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes import the parts defined by these tests outside of the package."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of a results.jsonl by key."""
    lines = [ResultLine(key, result).to_json() for key, result in read_results(path).items()]
    return {line.pop("key"): line for line in lines}


def test_failures_are_results(tmp_path: Path) -> None:
    """An exception or a dying process costs one measurement. A part that cannot start fails as a whole."""
    told = run(tmp_path, part("faulty"), part("missing"), part("good"), part("lost"))
    results = read(tmp_path / "results.jsonl")
    assert results["faulty/b"] == {"error": "RuntimeError: CUDA error: one / of several lines"}
    died = results["faulty/d"]["error"]
    assert "its process ended with status -6" in died
    assert "the last words" in died
    good = [key for key, result in results.items() if "error" not in result]
    assert good == ["faulty/a", "faulty/c", "faulty/e", "good/a", "good/b", "good", "lost/a", "lost/c"]
    assert results["faulty"]["error"] == "2 failed"
    assert "No module named 'no_such_package'" in results["missing"]["error"]
    assert results["good/a"]["tiny"] is True
    assert results["good/a"]["process"] == results["good/b"]["process"] != os.getpid()
    assert "faulty: 3 of 5 measured: 2 failed\n  faulty/b: RuntimeError" in told[0]
    assert "libraries print, too" in (tmp_path / "logs/good.txt").read_text()
    assert "faulty/b" in (tmp_path / "table.md").read_text()


def test_results_are_not_measured_again(tmp_path: Path) -> None:
    """Failures are measured again, and the new file has all results, even if both files have the same name."""
    run(tmp_path, part("good"), part("faulty"))
    file = tmp_path / "results.jsonl"
    before = read(file)
    file.write_text(file.read_text() + '{"key": "good/')  # the process was killed while it wrote
    with pytest.raises(UserError, match=r"choose another `output`, or continue it by `done`"):
        run(tmp_path, part("good"))
    told = run(tmp_path, part("good"), part("faulty"), done=file)
    assert told[0] == "good: measured before"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["key"]: line for line in lines}["good/a"]["process"] == before["good/a"]["process"]
    again = [line["key"] for line in lines[len([key for key in before if "error" not in before[key]]) :]]
    assert again == ["faulty/b", "faulty/d", "faulty"]
    with pytest.raises(FileNotFoundError, match="no results at"):
        run(tmp_path / "other", part("good"), done=tmp_path / "nowhere")
    (tmp_path / "other.json").write_text('{"name": "H100"}')
    with pytest.raises(UserError, match="other.json has no results: give the results.jsonl of"):
        read_results(tmp_path / "other.json")


def test_time_limit_and_budget(tmp_path: Path) -> None:
    """A hanging part is stopped. A part that does not fit into the budget is skipped, and a shorter one after it is not."""
    # Starting the process of a part counts, and takes longer on a loaded machine.
    time_limit = math.ceil(scaled(2))
    budget = 5 * time_limit
    parts = (part("slow", 1), part("missing", budget + 1), part("good", 2))
    run(tmp_path, *parts, budget=budget, time_limit=time_limit)
    results = read(tmp_path / "results.jsonl")
    assert results["slow/a"] == {}
    assert results["slow/b"] == {"error": f"stopped after {time_limit} s"}
    assert results["slow"]["error"] == f"stopped after {time_limit} s"
    assert f"takes about {budget + 1} s" in results["missing"]["left out"]
    assert "good/b" in results


def test_processes_end_with_the_command(tmp_path: Path) -> None:
    """Processes end even when killing the command, so none keeps the GPU."""
    code = (
        "import sys, pathlib; from tests.helpers.lab import benchmark_parts as parts; "
        "parts.run(pathlib.Path(sys.argv[1]), parts.part('slow'))"
    )
    command = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    log = tmp_path / "results.jsonl"
    wait_until(lambda: log.exists() and "slow/a" in log.read_text(), "the first result", 30, process=command)
    (child,) = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    command.send_signal(signal.SIGKILL)
    command.wait()
    wait_until(lambda: has_ended(int(child)), "the end of the child process", 30)
