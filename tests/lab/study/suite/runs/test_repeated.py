"""Repeating finished runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatape.errors import UserError
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.study import Study
from megatape.lab.study.suite.plan import Plan, parse_plan
from megatape.lab.study.suite.suite import repeat_runs, suite


@pytest.fixture
def plan() -> Plan:
    return parse_plan("tiny", "capitals", "rope,tape", 2, [1e-3])


def change_result(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))


@pytest.mark.usefixtures("capitals", "quick_children")
def test_repeated_runs_are_compared(plan: Plan, tmp_path: Path) -> None:
    """A run is repeated bit for bit. Otherwise the line says by how much it differs, and what has changed."""
    shown: list[str] = []
    study = Study(tmp_path, RunPool(1, None), "typed", shown.append)
    suite(plan, study)
    result = tmp_path / "capitals" / "tape" / "rate-0.001" / "seed-1" / "scores.json"
    content = json.loads(result.read_text())
    loss = content["validation_loss"]
    change_result(result, validation_loss=2 * loss, origin=content["origin"] | {"threads": "99"})
    shown.clear()

    repeat_runs(plan, study, 2)

    rope, tape = shown[-1].split("\n\n")
    assert rope == "capitals, rope, rate 0.001, seed 1: equal"
    assert tape.startswith("capitals, tape, rate 0.001, seed 1: validation loss ")
    assert f"validation loss {loss:.6g} instead of {2 * loss:.6g} (-0.5 of it)" in tape
    assert tape.endswith(f"(threads 99, now {content['origin']['threads']})")


@pytest.mark.usefixtures("capitals", "quick_children")
def test_results_of_earlier_versions_do_not_say_how_they_were_computed(plan: Plan, tmp_path: Path) -> None:
    shown: list[str] = []
    plan = replace(plan, encodings=("rope",), seeds=1)
    study = Study(tmp_path, RunPool(1, None), "typed", shown.append)
    suite(plan, study)
    change_result(tmp_path / "capitals" / "rope" / "rate-0.001" / "seed-1" / "scores.json", origin={})

    repeat_runs(plan, study, 5)

    assert shown[-1].startswith("capitals, rope, rate 0.001, seed 1: equal (megatape not recorded, now ")


@pytest.mark.usefixtures("capitals")
def test_repeating_needs_a_finished_run(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no finished run that could be repeated: leave out"):
        repeat_runs(plan, Study(tmp_path, RunPool(1, None), "typed", print), 1)
