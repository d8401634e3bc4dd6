"""Designs: plans that are fixed before the first run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatape.lab.study.suite import suite as suite_module
from megatape.lab.study.suite.design import DESIGN, begin_design, check_design
from megatape.lab.study.suite.plan import PLAN, Plan, parse_plan
from megatape.lab.study.suite.scores.task_result import SCORES
from tests.helpers.processes.command import Command, assert_refused


@pytest.fixture
def plan() -> Plan:
    return parse_plan("tiny", "copy", "rope,tape", 2, [0.01])


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command check the design, and train nothing."""

    def suite(plan: Plan, study: Any, only: int | None = None) -> None:
        check_design(plan, study.output)

    monkeypatch.setattr(suite_module, "suite", suite)


def test_a_suite_without_a_plan_file_has_no_design(plan: Plan, tmp_path: Path) -> None:
    assert check_design(plan, tmp_path) is None


def test_a_design_is_written_before_the_first_run(plan: Plan, tmp_path: Path) -> None:
    begin_design(plan, tmp_path / "out")
    design = check_design(plan, tmp_path / "out")

    assert design is not None
    assert design.describe() == f"Design: `{DESIGN}`, {design.hash}, written before the first run."


def test_the_hash_is_that_of_the_plan(plan: Plan, tmp_path: Path) -> None:
    hashes = []
    for number, seeds in enumerate((2, 2, 3)):
        changed = replace(plan, seeds=seeds)
        begin_design(changed, tmp_path / str(number))
        design = check_design(changed, tmp_path / str(number))
        assert design is not None
        hashes.append(design.hash)

    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]


def test_a_design_after_some_runs_says_so(plan: Plan, tmp_path: Path) -> None:
    run = tmp_path / "copy" / "rope" / "rate-0.01" / "seed-1"
    run.mkdir(parents=True)
    (run / SCORES).write_text("{}")
    begin_design(plan, tmp_path)
    design = check_design(plan, tmp_path)

    assert design is not None
    assert design.describe().endswith("written after 1 run.")


@pytest.mark.usefixtures("checked")
def test_a_changed_plan_is_refused(command: Command, plan: Plan, tmp_path: Path) -> None:
    """The error names the change. The same plan is accepted again."""
    file = tmp_path / PLAN
    out = tmp_path / "out"
    plan.write(file)
    words = ("study", "suite", "--plan", file, "--output", out)
    assert command(*words)[0] == 0
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"test": "welch"}))

    assert_refused(command(*words), f"{out} follows a design, in which test is permutation, not welch: use the same --plan")
    file.write_text(json.dumps(content))
    assert command(*words)[0] == 0


@pytest.mark.usefixtures("checked")
def test_other_options_are_refused(command: Command, plan: Plan, tmp_path: Path) -> None:
    begin_design(plan, tmp_path)
    selection = ("--tasks", "copy", "--encodings", "rope,tape", "--rates", 0.01)

    assert_refused(
        command("study", "suite", *selection, "--seeds", 3, "--output", tmp_path),
        f"{tmp_path} follows a design, in which seeds is 2, not 3",
    )
    assert command("study", "suite", *selection, "--seeds", 2, "--output", tmp_path)[0] == 0


def test_a_damaged_design_is_refused(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / DESIGN).write_text("{}")

    with pytest.raises(ValueError, match=r"design.json: plan: Field required: restore the file"):
        check_design(plan, tmp_path)
