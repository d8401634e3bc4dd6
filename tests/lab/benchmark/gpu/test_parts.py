"""Every part of the GPU benchmark with tiny sizes on a CPU: a failure here would be one on a GPU."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from megatape.commands.benchmark import gpu
from megatape.lab.benchmark.gpu import runner
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.parts import PARTS, Part
from megatape.lab.benchmark.gpu.report import report
from megatape.lab.benchmark.gpu.results import Entry, Results, read_results
from megatape.lab.benchmark.gpu.runner import Conditions, benchmark
from tests.helpers.processes.command import Command

ROOT = Path(__file__).parents[4]


def test_most_parts_start_within_ten_minutes() -> None:
    begins = [sum(part.seconds for part in PARTS[:index]) for index in range(len(PARTS))]
    assert sum(begin < 600 for begin in begins) > len(PARTS) / 2
    assert len({part.name for part in PARTS}) == len(PARTS)


@pytest.mark.slow
def test_command_measures_what_its_budget_allows(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The budget is for one of two parts. Tests marked gpu are skipped, in a process of their own."""
    monkeypatch.setattr(gpu, "PARTS", (PARTS[0], replace(PARTS[1], seconds=1000)))
    given = ("--out", tmp_path / "out", "--device", "cpu", "--tiny", "--budget", 500)
    code, printed, errors = command("benchmark", "gpu", *given)
    assert code == 0, errors
    assert "machine: 2 of 2 measured" in printed
    assert "ceilings: left out: takes about 1000 s" in printed
    assert "left out: takes about 1000 s" in (tmp_path / "out/table.md").read_text()
    assert command("benchmark", "gpu", "--out", tmp_path / "other")[2].startswith("error: PyTorch finds no CUDA device")

    tests = next(part for part in PARTS if part.name == "tests")
    list(benchmark([tests], tmp_path / "tests", Conditions("cpu", tiny=True)))
    results = read_results(tmp_path / "tests/results.jsonl")
    reasons = {key: result.figures.get("skipped") for key, result in results.items() if key.case}
    assert set(reasons.values()) == {"Skipped: needs a CUDA device"}
    assert {str(key).split("::")[0] for key in reasons} == {
        f"tests/{file.name}" for file in (ROOT / "tests/gpu").glob("test_*.py")
    }


def test_chosen_parts_run_in_the_order_of_the_benchmark(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An unknown part is refused before anything runs."""
    begun: list[str] = []

    def benchmark(parts: tuple[Part, ...], *_: Any) -> list[str]:
        begun.extend(part.name for part in parts)
        return []

    monkeypatch.setattr(runner, "benchmark", benchmark)
    given = ("benchmark", "gpu", "--out", tmp_path / "out", "--device", "cpu", "--tiny", "--parts")
    assert command(*given, "step 155m,machine")[0] == 0
    assert begun == ["machine", "step 155m"]
    assert "--parts: 'step' is not a part of the benchmark: did you mean step 7b?" in command(*given, "step")[2]


# The rows of the table of packages in docs/benchmarks.md, and the parts that need them beside those of the first row.
PACKAGE_ROWS = {
    "tests": ["tests"],
    "serving": ["serving"],
    "pretrain": ["pretrain"],
}
EVERY_PART = "every part"
# What PyTorch brings, and this package.
BROUGHT = {
    "torch",
    "triton",
    "sympy",
    "mpmath",
    "networkx",
    "jinja2",
    "markupsafe",
    "fsspec",
    "filelock",
    "setuptools",
    "megatape",
}
BLOCKER = """
import os, sys

class Finder:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in os.environ["BLOCKED"].split():
            return self.finder.find_spec(name, path, target)

    def find_distributions(self, *context):
        found = getattr(self.finder, "find_distributions", lambda *_: ())(*context)
        return (each for each in found if each.metadata["Name"].lower() in os.environ["LISTED"].split())

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path = [Finder(finder) for finder in sys.meta_path]
"""


@pytest.mark.slow
@pytest.mark.parametrize("row", [EVERY_PART, *PACKAGE_ROWS])
def test_parts_import_only_the_listed_packages(row: str, tmp_path: Path) -> None:
    """All other packages are hidden, as on a bare machine with the listed wheels."""
    page = (ROOT / "docs/benchmarks.md").read_text()
    rows = dict(re.findall(r"^\| (.*) \| (.*) \|$", page.split("| for | packages |")[1].split("\n\n")[0], re.MULTILINE))
    named = " ".join([rows[EVERY_PART], rows[row], *[rows["pretrain"]] * (row == "tests")]).lower()
    allowed = BROUGHT | {word.replace("_", "-") for word in re.findall(r"\w[\w.-]*", named)}
    listed = set[str]()
    blocked = list[str]()
    for name, packages in packages_distributions().items():
        known = {package.lower() for package in packages if package.lower().replace("_", "-") in allowed}
        listed |= known
        if not known:
            blocked.append(name)
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    parts = PACKAGE_ROWS.get(row) or [part.name for part in PARTS if part.name not in sum(PACKAGE_ROWS.values(), ["fp8"])]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "BLOCKED": " ".join(blocked), "LISTED": " ".join(listed)}
    command = ["benchmark", "gpu", "--out", str(tmp_path / "out"), "--device", "cpu", "--tiny", "--parts", ",".join(parts)]
    assert subprocess.run([sys.executable, "-m", "megatape", *command[:2], "--help"], env=environment).returncode == 0
    process = subprocess.run([sys.executable, "-m", "megatape", *command], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    found = read_results(tmp_path / "out/results.jsonl")
    faults = {key: each.error for key, each in found.items() if each.error and "FP8" not in str(key) and key.case}
    assert not faults
    assert len(found) > len(parts)


@pytest.fixture(scope="module")
def results() -> Results:
    """Results of all other parts."""
    return measured([part.name for part in PARTS if part.name != "tests"])


def measured(names: list[str]) -> Results:
    """Return results of parts that run in this process, which has imported everything."""
    channel = io.StringIO()
    for part in PARTS:
        if part.name in names:
            part.measure(Bench(part.name, "cpu", True, set(), channel))
    entries = [json.loads(line) for line in channel.getvalue().splitlines()]
    return dict(Entry.parse(entry) for entry in entries if "key" in entry)


@pytest.mark.slow
def test_all_parts_run(results: Results) -> None:
    """Without torchao, the FP8 steps fail with a message that says so."""
    faults = {key: result.error for key, result in results.items() if result.error is not None}
    lacking = {key for key, fault in faults.items() if find_spec("torchao") is None and "torchao cannot be imported" in fault}
    assert not faults.keys() - lacking, faults
    assert {key.part for key in results} == {part.name for part in PARTS if part.name != "tests"}


@pytest.mark.fp8
@pytest.mark.slow
def test_fp8() -> None:
    results = measured(["fp8"])
    assert results
    assert not {key: result.error for key, result in results.items() if result.error is not None}


@pytest.mark.slow
def test_tables_have_every_measurement(results: Results) -> None:
    """Ratios are to the fastest RoPE."""
    text = report(results)
    tables = dict(_tables(text))
    assert tables.keys() >= {"Targets", "Attention with rotation, one layer", "megatape pretrain", "Exported TAPE"}
    assert len(tables["Targets"]) == 6  # a CPU's peak is not known, so there is no MFU
    steps = [row for row in tables["Training steps"] if row[0] == "155m"]
    assert min(float(row[5]) for row in steps if row[1] == "rope") == 1.0
    for title, part in {
        "Rotation and position update, beside a copy of the fewest bytes": "update",
        "Ceilings": "ceilings",
    }.items():
        assert len(tables[title]) == sum(key.part == part for key in results)


def _tables(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    for title, table in re.findall(r"^\*\*(.*)\*\*\n\n((?:\|.*\n)+)", text, re.MULTILINE):
        yield title, [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
