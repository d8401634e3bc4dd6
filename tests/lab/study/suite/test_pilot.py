"""The pilot that times runs, what a budget has room for, and the plan that a user confirms, refuses or edits."""

import builtins
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatape.lab.study.suite import plan as planning
from megatape.lab.study.suite import run
from megatape.lab.study.suite.plan import (
    CORE_ENCODINGS,
    CORE_SEEDS,
    CORE_TASKS,
    PILOT,
    PLAN,
    SIZES,
    Costs,
    Plan,
    describe,
    expected_costs,
    fit,
    parse_plan,
    read_plan,
)
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from tests.helpers.cells import cells
from tests.helpers.command import Command

COSTS = Costs(30.0, dict.fromkeys(SYNTHETIC_TASKS, 30.0), dict.fromkeys(ENCODINGS, 1.0))


def test_a_pilot_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "tiny", replace(SIZES["tiny"], batch=1, test=1))
    monkeypatch.setattr(planning, "MODULES", ("json",))  # those of a run take seconds
    asked = parse_plan("tiny", "copy,flip_flop", "rope,tape", 1, None)
    costs = expected_costs(asked, tmp_path, jobs=1)
    assert costs.tasks["flip_flop"] > 0 and costs.encodings["tape"] > 0 and costs.start > 0
    assert json.loads((tmp_path / PILOT).read_text())["tasks"] == costs.tasks
    assert expected_costs(parse_plan("tiny", "copy", "tape", 1, None), tmp_path, jobs=1) == costs
    (tmp_path / PILOT).write_text('{"start": 1}')
    with pytest.raises(ValueError, match="pilot.json is corrupted .* remove it"):
        expected_costs(asked, tmp_path, jobs=1)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that the command trains, which takes no time, and neither does the pilot."""
    plans: list[Plan] = []

    def suite(plan: Plan, *arguments: Any, **options: Any) -> list[str]:
        plans.append(plan)
        return []

    monkeypatch.setattr(run, "suite", suite)
    monkeypatch.setattr(planning, "expected_costs", lambda *_: COSTS)
    return plans


ASKED = (
    "study",
    "suite",
    "--jobs",
    1,
    "--tasks",
    "copy,flip_flop",
    "--encodings",
    "rope,tape",
    "--seeds",
    3,
    "--rates",
    "0.01",
)


def facts(plan: Plan) -> dict[str, Any]:
    """A plan with the definitions of its tasks, which can be compared."""
    return vars(plan) | {"tasks": [task.definition for task in plan.tasks]}


def test_nobody_to_ask(command: Command, trained: list[Plan], tmp_path: Path) -> None:
    """The plan is printed and nothing is trained; --yes goes on, and so does the file, edited."""
    out, file = tmp_path / "out", tmp_path / "out" / PLAN
    code, printed, errors = command(*ASKED, "--budget", 12, "--out", out)
    assert code == 2 and not trained
    assert "12 runs, which take about 12 minutes" in printed and "3 x 1.0" in printed and "Nothing is left out." in printed
    assert f"--budget 12 --out {out} --yes; or edit {file} and give --plan {file} in place of --budget" in errors
    code, printed, errors = command(*ASKED, "--budget", 12, "--out", out, "--yes")
    assert code == 0 and "12 runs" in printed, errors
    assert facts(*trained) == facts(parse_plan("tiny", "flip_flop,copy", "rope,tape", 3, [0.01])) == facts(read_plan(file))

    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"tasks": ["copy"], "left_out": ["flip_flop (too long)"]}))
    code, _, errors = command("study", "suite", "--plan", file, "--out", out)
    assert code == 0, errors
    edited = replace(parse_plan("tiny", "copy", "rope,tape", 3, [0.01]), left_out=("flip_flop (too long)",))
    assert facts(trained[-1]) == facts(edited)


@pytest.mark.parametrize("answer", ["y", "", "no", None])
def test_a_user_at_a_terminal_is_asked(
    command: Command, trained: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None
) -> None:
    """Before the answer the user may edit the file. No answer is a no."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    file = tmp_path / PLAN

    def ask(question: str) -> str:
        file.write_text(file.read_text().replace('"seeds": 3', '"seeds": 2'))
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr(builtins, "input", ask)
    code, printed, errors = command(*ASKED, "--budget", 12, "--out", tmp_path)
    assert code == 0 and f"It is in {file}" in printed, errors
    assert [plan.seeds for plan in trained] == ([2] if answer == "y" else [])
    assert ("nothing was trained" in printed) == (answer != "y")


def test_a_plan_that_does_not_fit_the_rest(command: Command, trained: list[Plan], tmp_path: Path) -> None:
    file = tmp_path / PLAN
    parse_plan("tiny", "copy", "rope", 1, [0.01]).write(file)
    content = json.loads(file.read_text())
    for changes, words, message in [
        ({}, ("--tasks", "copy"), "--tasks: the file of --plan has its own: remove one of them"),
        ({}, ("--budget", 5), "not allowed with argument"),
        ({"tasks": ["copies"]}, (), f"{file}: tasks: 'copies' is not a task"),
        ({"seeds": 0}, (), f"{file}: seeds: must be greater than or equal to 1, got 0"),
        ({"seed": 1}, (), f"{file}: seed: Extra inputs are not permitted"),
    ]:
        file.write_text(json.dumps(content | changes))
        try:
            code, _, errors = command("study", "suite", "--plan", file, "--out", tmp_path, *words)
        except SystemExit as exit:
            assert exit.code == 2 and "--budget" in words
            continue
        assert code == 2 and message in errors, errors
    file.write_text("{")
    for path, message in (
        (tmp_path / "none.json", f"no plan at {tmp_path}/none.json"),
        (file, f"{file}: Expecting property name"),
        (tmp_path, f"Is a directory: '{tmp_path}'"),
    ):
        assert message in command("study", "suite", "--plan", path, "--out", tmp_path)[2]
    assert not trained


MINUTE = 60.0
# A run takes a minute with every encoding but `fire`, which takes fifty: more than all others after it.
MINUTES = Costs(30.0, dict.fromkeys(SYNTHETIC_TASKS, 30.0), dict.fromkeys(ENCODINGS, 1.0) | {"fire": 99.0})
CORE = len(CORE_TASKS) * len(CORE_ENCODINGS)


@pytest.fixture
def everything() -> Plan:
    return parse_plan("tiny", "all", "all", 5, None)


def names(plan: Plan) -> list[str]:
    return [task.name for task in plan.tasks]


def test_core(everything: Plan) -> None:
    core = CORE * CORE_SEEDS
    with pytest.raises(ValueError, match=f"budget is {core // 2 - 1} minutes, but the core takes about {core // 2}: flip_flop"):
        fit(everything, MINUTES, core / 2 - 1, jobs=2)
    plan = fit(everything, MINUTES, core / 2, jobs=2)
    left_out, shown = plan.left_out, describe(plan, MINUTES, core / 2, jobs=2)
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
    assert f"{core} runs, which take about {core // 2} minutes" in shown
    assert [cells(line) for line in shown.splitlines() if line.startswith("| `")] == [
        [f"`{task}`", *[f"{CORE_SEEDS} x 1.0"] * len(CORE_ENCODINGS)] for task in CORE_TASKS
    ]


def test_what_is_added_first(everything: Plan) -> None:
    """Rates, then tasks, then encodings, then seeds; what is too large does not keep smaller things out."""
    per_pair = CORE_SEEDS + len(everything.rates)
    tasks = len(SYNTHETIC_TASKS)
    with_rates = fit(everything, MINUTES, CORE * per_pair, jobs=1)
    assert with_rates.rates == everything.rates and names(with_rates) == list(CORE_TASKS)
    assert with_rates.left_out[0].startswith("task ")
    with_tasks = fit(everything, MINUTES, tasks * len(CORE_ENCODINGS) * per_pair, jobs=1)
    assert set(names(with_tasks)) == set(SYNTHETIC_TASKS) and with_tasks.left_out[0].startswith("encoding ")
    all_but_fire = tasks * (len(ENCODINGS) - 1) * (5 + len(everything.rates))
    without_fire = fit(everything, MINUTES, all_but_fire, jobs=1)
    assert set(without_fire.encodings) == set(ENCODINGS) - {"fire"} and without_fire.seeds == 5
    assert [phrase.split(" (")[0] for phrase in without_fire.left_out] == ["encoding fire"]
    whole = fit(everything, MINUTES, 1e6, jobs=1)
    assert whole.left_out == () and "Nothing is left out." in describe(whole, MINUTES, 1e6, jobs=1)


def test_a_small_request_has_its_own_core() -> None:
    asked = parse_plan("tiny", "copy", "rope,fire", 2, [0.01])
    assert fit(asked, MINUTES, 102, jobs=1) == asked
