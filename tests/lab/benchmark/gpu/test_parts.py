"""Running every part of the GPU benchmark with tiny sizes on a CPU: what fails here would fail on a GPU."""

import io
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from megatape.commands.benchmark import gpu
from megatape.lab.benchmark.gpu import runner
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.registry import PARTS, BenchmarkPart
from megatape.lab.benchmark.gpu.report import report
from megatape.lab.benchmark.gpu.results import ResultKey, ResultLine, Results, read_results
from megatape.lab.benchmark.gpu.runner import BenchmarkConditions, benchmark
from tests.helpers.processes.command import Command

ROOT = Path(__file__).parents[4]


def test_the_most_useful_parts_fit_ten_minutes() -> None:
    """Kernels, steps and a whole run with the smallest model. A run with a large one takes less than five minutes."""
    ends = {part.name: sum(before.seconds for before in PARTS[: index + 1]) for index, part in enumerate(PARTS)}
    for name in ("attention", "step 155m", "update", "pretrain 155m zero 2"):
        assert ends[name] <= 570, name
    assert max(part.seconds for part in PARTS if part.name.startswith("pretrain")) <= 280
    assert len(ends) == len(PARTS)


@pytest.mark.slow
def test_command_measures_what_its_budget_allows(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The budget is for one of two parts. Tests marked gpu are skipped, in a process of their own."""
    monkeypatch.setattr(gpu, "PARTS", (PARTS[0], replace(PARTS[1], seconds=1000)))
    given = ("--output", tmp_path / "out", "--device", "cpu", "--tiny", "--budget", 500)
    code, printed, errors = command("benchmark", "gpu", *given)
    assert code == 0, errors
    assert "machine: 2 of 2 measured" in printed
    assert "ceilings: left out: takes about 1000 s" in printed
    assert "left out: takes about 1000 s" in (tmp_path / "out/table.md").read_text()
    assert command("benchmark", "gpu", "--output", tmp_path / "other")[2].startswith("error: PyTorch finds no CUDA device")

    tests = next(part for part in PARTS if part.name == "tests")
    benchmark([tests], tmp_path / "tests", BenchmarkConditions("cpu", tiny=True), print)
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

    def benchmark(parts: tuple[BenchmarkPart, ...], *_: Any) -> list[str]:
        begun.extend(part.name for part in parts)
        return []

    monkeypatch.setattr(runner, "benchmark", benchmark)
    given = ("benchmark", "gpu", "--output", tmp_path / "out", "--device", "cpu", "--tiny", "--parts")
    assert command(*given, "step 155m,machine")[0] == 0
    assert begun == ["machine", "step 155m"]
    assert "--parts: 'step' is not a part of the benchmark: did you mean step 7b?" in command(*given, "step")[2]


# End of the error of a part whose times were too noisy, as on a machine that runs other tests.
NOISE = "measure again while nothing else runs on the device"


def faults_of(results: Results) -> dict[ResultKey, str]:
    """Return the errors of a benchmark, except for noisy times."""
    faults = {key: result.error for key, result in results.items() if result.error is not None}
    noisy = [key for key, error in faults.items() if error.endswith(NOISE)]
    for key in noisy:
        del faults[key]
    for part in {key.part for key in noisy}:
        # The error of a part counts those of its cases.
        whole = ResultKey(part, ())
        if faults.get(whole) == f"{sum(key.part == part for key in noisy)} failed":
            del faults[whole]
    return faults


# Parts of the benchmark, by the group of packages of launch/gpu_run.py that they need beside those of every part.
EVERY_PART = "every part"
PARTS_BY_GROUP = {
    "tests": ["tests"],
    "serving": ["serving"],
    "pretrain": [part.name for part in PARTS if part.name.startswith("pretrain")],
}
GROUPED = {"fp8", *chain.from_iterable(PARTS_BY_GROUP.values())}
OTHER_PARTS = [part.name for part in PARTS if part.name not in GROUPED]
# Packages installed by PyTorch, and this package
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
@pytest.mark.parametrize("group", [EVERY_PART, *PARTS_BY_GROUP])
def test_parts_import_only_packages_that_the_script_installs(group: str, tmp_path: Path) -> None:
    """All other packages are hidden. The parts of the first group need no packages of the other groups."""
    script = runpy.run_path(str(ROOT / "launch/gpu_run.py"))
    groups = script["PACKAGES"]
    named = list(groups[EVERY_PART])
    if group != EVERY_PART:
        for names in groups.values():
            named += names
        named += script["FROM_SOURCE"]
    allowed = BROUGHT | {name.lower().replace("_", "-") for name in named}
    listed = set[str]()
    blocked = list[str]()
    for name, packages in packages_distributions().items():
        known = {package.lower() for package in packages if package.lower().replace("_", "-") in allowed}
        listed |= known
        if not known:
            blocked.append(name)
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    parts = PARTS_BY_GROUP.get(group, OTHER_PARTS)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "BLOCKED": " ".join(blocked), "LISTED": " ".join(listed)}
    command = ["benchmark", "gpu", "--output", str(tmp_path / "out"), "--device", "cpu", "--tiny", "--parts", ",".join(parts)]
    assert subprocess.run([sys.executable, "-m", "megatape", *command[:2], "--help"], env=environment).returncode == 0
    process = subprocess.run([sys.executable, "-m", "megatape", *command], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    found = read_results(tmp_path / "out/results.jsonl")
    faults = {key: error for key, error in faults_of(found).items() if "FP8" not in str(key)}
    assert not faults
    assert len(found) > len(parts)


@pytest.fixture(scope="module")
def results() -> Results:
    """Run all other parts, and return their results."""
    return measured([part.name for part in PARTS if part.name != "tests"])


def measured(names: list[str]) -> Results:
    """Return results after running parts in this process, which has imported everything."""
    channel = io.StringIO()
    for part in PARTS:
        if part.name in names:
            part.measure(Bench(part.name, "cpu", True, set(), channel))
    entries = [json.loads(line) for line in channel.getvalue().splitlines()]
    return dict(ResultLine.parse(entry) for entry in entries if "key" in entry)


@pytest.mark.slow
def test_all_parts_run(results: Results) -> None:
    """Without torchao, the FP8 steps fail with a message that says so."""
    faults = faults_of(results)
    lacking = {key for key, fault in faults.items() if find_spec("torchao") is None and "torchao cannot be imported" in fault}
    assert not faults.keys() - lacking, faults
    assert {key.part for key in results} == {part.name for part in PARTS if part.name != "tests"}


@pytest.mark.fp8
@pytest.mark.slow
def test_fp8() -> None:
    results = measured(["fp8"])
    assert results
    assert not faults_of(results)


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
