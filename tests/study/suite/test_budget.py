"""What a suite runs in so many minutes: the core first, then more in a stated order."""

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.study.suite.budget import CORE_ENCODINGS, CORE_SEEDS, CORE_TASKS, Costs, fit
from megatape.study.suite.pilot import PILOT, expected_costs
from megatape.study.suite.plan import Plan, parse_plan
from megatape.study.suite.sizes import SIZES

MINUTE = 60.0
# A run takes a minute with every encoding but `fire`, which takes ten.
COSTS = Costs(30.0, dict.fromkeys(SYNTHETIC_TASKS, 30.0), dict.fromkeys(ENCODINGS, 1.0) | {"fire": 19.0})
CORE = len(CORE_TASKS) * len(CORE_ENCODINGS)


@pytest.fixture
def everything() -> Plan:
    return parse_plan("tiny", "all", "all", 5, None)


def names(plan: Plan) -> list[str]:
    return [task.name for task in plan.tasks]


def test_core(everything: Plan) -> None:
    core = CORE * CORE_SEEDS
    with pytest.raises(ValueError, match=f"budget is {core // 2 - 1} minutes, but the core takes about {core // 2}: flip_flop"):
        fit(everything, COSTS, core / 2 - 1, jobs=2)
    plan, left_out, shown = fit(everything, COSTS, core / 2, jobs=2)
    assert (names(plan), plan.encodings, plan.seeds, plan.rates) == (
        list(CORE_TASKS),
        CORE_ENCODINGS,
        CORE_SEEDS,
        (SIZES["tiny"].rate,),
    )
    rates = len(everything.rates)
    assert f"the choice of learning rates (the plan with it takes {CORE * (CORE_SEEDS + rates) // 2} minutes" in left_out[0]
    # Everything that was asked for is planned or named.
    assert len(left_out) == 1 + len(SYNTHETIC_TASKS) - len(CORE_TASKS) + len(ENCODINGS) - len(CORE_ENCODINGS) + 5 - CORE_SEEDS
    assert left_out[-1].startswith("seed 5 ") and "No run is stopped early" in shown
    assert all(phrase in shown for phrase in left_out)


def test_what_is_added_first(everything: Plan) -> None:
    """Rates, then tasks, then encodings, then seeds; what is too large does not keep smaller things out."""
    per_pair = CORE_SEEDS + len(everything.rates)
    tasks = len(SYNTHETIC_TASKS)
    with_rates, left_out, _ = fit(everything, COSTS, CORE * per_pair, jobs=1)
    assert with_rates.rates == everything.rates and names(with_rates) == list(CORE_TASKS) and left_out[0].startswith("task ")
    with_tasks, left_out, _ = fit(everything, COSTS, tasks * len(CORE_ENCODINGS) * per_pair, jobs=1)
    assert set(names(with_tasks)) == set(SYNTHETIC_TASKS) and left_out[0].startswith("encoding ")
    all_but_fire = tasks * (len(ENCODINGS) - 1) * (5 + len(everything.rates))
    without_fire, left_out, _ = fit(everything, COSTS, all_but_fire, jobs=1)
    assert set(without_fire.encodings) == set(ENCODINGS) - {"fire"} and without_fire.seeds == 5
    assert [phrase.split(" (")[0] for phrase in left_out] == ["encoding fire"]
    assert fit(everything, COSTS, 1e6, jobs=1)[1] == []


def test_a_small_request_has_its_own_core() -> None:
    asked = parse_plan("tiny", "copy", "rope,fire", 2, "0.01")
    plan, left_out, _ = fit(asked, COSTS, 22, jobs=1)
    assert plan == asked and not left_out


def test_a_pilot_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "tiny", replace(SIZES["tiny"], batch=1, micro_batch=1, test=1))
    monkeypatch.setattr(subprocess, "run", lambda command, **options: time.sleep(0.01))  # starts a process that imports torch
    asked = parse_plan("tiny", "copy,flip_flop", "rope,tape", 1, None)
    costs = expected_costs(asked, tmp_path, jobs=1)
    assert costs.tasks["flip_flop"] > 0 and costs.encodings["tape"] > 0 and costs.start > 0
    assert json.loads((tmp_path / PILOT).read_text())["tasks"] == costs.tasks
    assert expected_costs(parse_plan("tiny", "copy", "tape", 1, None), tmp_path, jobs=1) == costs
    (tmp_path / PILOT).write_text('{"start": 1}')
    with pytest.raises(ValueError, match="pilot.json is corrupted .* remove it"):
        expected_costs(asked, tmp_path, jobs=1)
