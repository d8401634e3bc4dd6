"""Plans from options and from files. Every size supports every task and encoding."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.lab.study.suite import suite as suite_module
from megatape.lab.study.suite.plan import PLAN, Plan, parse_plan, read_plan
from megatape.lab.study.suite.scores.measure import inapplicable
from megatape.lab.study.suite.sizes import DEMO_ENCODINGS, DEMO_SEEDS, DEMO_TASKS, SIZES
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from tests.helpers.lab.capitals import QUICK
from tests.helpers.processes.command import Command


@pytest.mark.usefixtures("capitals")
def test_bad_input() -> None:
    plan = parse_plan("tiny", "all", "all", 2, None)
    assert [task.name for task in plan.tasks] == list(SYNTHETIC_TASKS)
    assert plan.encodings == tuple(ENCODINGS)
    assert plan.rates == QUICK.rates
    assert parse_plan("tiny", "all", "all", 2, [0.1, 0.2]).rates == (0.1, 0.2)
    for arguments, message in [
        (("huge", "all", "all", 1, None), "size: 'huge' is not a size: choose one of tiny, small, base, demo"),
        (("tiny", "capital", "all", 1, None), "tasks: 'capital' is not a task: did you mean capitals?"),
        (("tiny", "capitals,capitals", "all", 1, None), "tasks: capitals is listed twice"),
        (("tiny", "all", "ropes", 1, None), "'ropes' is not an encoding"),
        (("tiny", "all", "rope,rope", 1, None), "rope is listed twice"),
        (("tiny", "all", "rope", 1, [0.1, 0.1]), "rates: one is listed twice"),
    ]:
        with pytest.raises(ValueError) as error:
            parse_plan(*arguments)
        assert message in str(error.value)


def test_defaults_of_a_size() -> None:
    """Options that are not given have the size's values: `demo` has few tasks and one learning rate."""
    plan = parse_plan("demo", None, None, None, None)
    assert ([task.name for task in plan.tasks], plan.encodings) == (list(DEMO_TASKS), DEMO_ENCODINGS)
    assert (plan.seeds, plan.rates, plan.runs_of_pair) == (DEMO_SEEDS, (SIZES["tiny"].rate,), DEMO_SEEDS)
    assert {task.size for task in plan.tasks} == {"tiny"}
    other = parse_plan("demo", "copy", "all", 7, [0.1])
    assert ([task.name for task in other.tasks], other.seeds, other.rates) == (["copy"], 7, (0.1,))
    assert other.encodings == tuple(ENCODINGS)
    with pytest.raises(ValueError, match="'dmo' is not a size: did you mean demo"):
        parse_plan("dmo", None, None, None, None)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ("fast", "--rates: must be a valid number, unable to parse string as a number, got 'fast'"),
        ("0.1,-1", "--rates: must be greater than 0, got '-1'"),
        ("1", "--rates: must be less than 1, got '1'"),
        ("0.1,1e-1", "--rates: one is listed twice"),
    ],
)
def test_bad_rates(command: Command, tmp_path: Path, rates: str, message: str) -> None:
    code, _, errors = command("study", "suite", "--rates", rates, "--out", tmp_path)
    assert code == 2
    assert errors == f"error: {message}\n"


@pytest.mark.parametrize("size", SIZES)
def test_every_size_supports_every_encoding(size: str, tmp_path: Path) -> None:
    for task in parse_plan(size, "all", "rope", 1, None).tasks:
        sizing = SIZES[size]
        raw = sizing.config(task, "data", 300) | {"run": {"directory": str(tmp_path)}}
        for encoding in ENCODINGS:
            config = parse_config(raw | {"model": raw["model"] | {"encoding": encoding}}, "test")
            assert all(inapplicable(task, split, encoding) is None for split in task.splits)
        training = config.training
        assert training.global_batch_size % training.micro_batch_size == 0
        assert sizing.tokens / 2 < training.steps * sizing.batch * task.tokens("train") <= sizing.tokens
        assert sizing.rate in sizing.rates


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that the command would train."""
    plans: list[Plan] = []

    def suite(plan: Plan, *arguments: Any, **options: Any) -> list[str]:
        plans.append(plan)
        return []

    monkeypatch.setattr(suite_module, "suite", suite)
    return plans


SELECTION = ("--tasks", "copy,flip_flop", "--encodings", "rope,tape", "--seeds", 3, "--rates", "0.01")


def facts(plan: Plan) -> dict[str, Any]:
    """A plan with the definitions of its tasks, which can be compared."""
    return vars(plan) | {"tasks": [task.definition for task in plan.tasks]}


def test_options_select_the_runs(command: Command, trained: list[Plan], tmp_path: Path) -> None:
    code, _, errors = command("study", "suite", *SELECTION, "--out", tmp_path)
    assert code == 0, errors
    assert facts(*trained) == facts(parse_plan("tiny", "copy,flip_flop", "rope,tape", 3, [0.01]))


@pytest.mark.parametrize("name", [PLAN, "my_plan.json"])
def test_a_dry_run_writes_a_plan_that_can_be_edited_and_trained(
    command: Command, trained: list[Plan], tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    file = out / PLAN
    words: list[Any] = ["study", "suite", *SELECTION, "--out", out, "--dry-run"]
    if name != PLAN:
        file = tmp_path / "plans" / name
        words += ["--plan", file]
    code, printed, errors = command(*words)
    assert code == 0 and not trained, errors
    assert "12 runs: copy, flip_flop; rope, tape; 3 seeds; learning rate 0.01" in printed
    assert f"--plan {file}" in printed
    assert facts(read_plan(file)) == facts(parse_plan("tiny", "copy,flip_flop", "rope,tape", 3, [0.01]))

    code, _, errors = command(*words)
    assert code == 2
    assert f"{file} exists: remove it, or give another file as --plan" in errors

    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"tasks": ["copy"], "left_out": ["flip_flop (too long)"]}))
    code, _, errors = command("study", "suite", "--plan", file, "--out", out)
    assert code == 0, errors
    edited = replace(parse_plan("tiny", "copy", "rope,tape", 3, [0.01]), left_out=("flip_flop (too long)",))
    assert facts(*trained) == facts(edited)


@pytest.mark.parametrize("words", [("--cell", 1), ("--slurm", "--time 60")])
def test_a_dry_run_trains_nothing(command: Command, trained: list[Plan], tmp_path: Path, words: tuple[Any, ...]) -> None:
    code, _, errors = command("study", "suite", "--dry-run", *words, "--out", tmp_path)
    assert code == 2
    assert f"{words[0]}: not allowed with --dry-run" in errors
    assert not trained
    assert not list(tmp_path.iterdir())


def test_a_search_of_learning_rates_is_described() -> None:
    plan = parse_plan("tiny", "copy", "rope", 1, [0.001, 0.01])
    assert plan.describe() == "3 runs: copy; rope; 1 seed; a learning rate of 0.001, 0.01"


def test_bad_plan_files(command: Command, trained: list[Plan], tmp_path: Path) -> None:
    file = tmp_path / PLAN
    parse_plan("tiny", "copy", "rope", 1, [0.01]).write(file)
    content = json.loads(file.read_text())
    for changes, words, message in [
        ({}, ("--tasks", "copy"), "--tasks: the file of --plan has its own: remove one of them"),
        ({}, ("--cell", 1), "not allowed with argument"),
        ({"tasks": ["copies"]}, (), f"{file}: tasks: 'copies' is not a task"),
        ({"seeds": 0}, (), f"{file}: seeds: must be greater than or equal to 1, got 0"),
        ({"seed": 1}, (), f"{file}: seed: Extra inputs are not permitted"),
    ]:
        file.write_text(json.dumps(content | changes))
        try:
            code, _, errors = command("study", "suite", "--plan", file, "--out", tmp_path, *words)
        except SystemExit as exit:
            assert exit.code == 2
            assert "--cell" in words
            continue
        assert code == 2 and message in errors, errors
    file.write_text("{")
    for path, message in (
        (tmp_path / "none.json", f"no plan at {tmp_path}/none.json: --dry-run writes one"),
        (file, f"{file}: Expecting property name"),
        (tmp_path, f"Is a directory: '{tmp_path}'"),
    ):
        assert message in command("study", "suite", "--plan", path, "--out", tmp_path)[2]
    assert not trained
