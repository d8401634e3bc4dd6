"""Plans from options and from files. Every size supports every task and encoding."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.config import parse_config
from megatape.lab.study.suite import suite as suite_module
from megatape.lab.study.suite.plan import PLAN, Plan, parse_plan, read_plan
from megatape.lab.study.suite.scores.measure import inapplicable
from megatape.lab.study.suite.sizes import DEMO_ENCODINGS, DEMO_SEEDS, DEMO_TASKS, SIZES
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from tests.helpers.lab.capitals import QUICK
from tests.helpers.processes.command import Command, assert_refused


@pytest.mark.usefixtures("capitals")
def test_all_selects_every_task_and_encoding() -> None:
    plan = parse_plan("tiny", "all", "all", 2, None)

    assert [task.name for task in plan.tasks] == list(SYNTHETIC_TASKS)
    assert plan.encodings == tuple(ENCODINGS)
    assert plan.rates == QUICK.rates


@pytest.mark.usefixtures("capitals")
def test_rates_replace_those_of_the_size() -> None:
    assert parse_plan("tiny", "all", "all", 2, [0.1, 0.2]).rates == (0.1, 0.2)


class BadOptions(NamedTuple):
    """Options that are refused, with the message."""

    message: str
    size: str = "tiny"
    tasks: str = "all"
    encodings: str = "all"
    rates: list[float] | None = None


@pytest.mark.usefixtures("capitals")
@pytest.mark.parametrize(
    "bad",
    [
        BadOptions("size: 'huge' is not a size: choose one of tiny, small, base, deep, demo", size="huge"),
        BadOptions("tasks: 'capital' is not a task: did you mean capitals?", tasks="capital"),
        BadOptions("tasks: capitals is listed twice", tasks="capitals,capitals"),
        BadOptions("'ropes' is not an encoding", encodings="ropes"),
        BadOptions("rope is listed twice", encodings="rope,rope"),
        BadOptions("rates: one is listed twice", encodings="rope", rates=[0.1, 0.1]),
    ],
    ids=lambda bad: bad.message,
)
def test_bad_options_are_refused(bad: BadOptions) -> None:
    with pytest.raises(ValueError) as error:
        parse_plan(bad.size, bad.tasks, bad.encodings, 1, bad.rates)
    assert bad.message in str(error.value)


def test_demo_has_few_tasks_and_one_learning_rate() -> None:
    plan = parse_plan("demo", None, None, None, None)

    assert [task.name for task in plan.tasks] == list(DEMO_TASKS)
    assert {task.size for task in plan.tasks} == {"tiny"}
    assert plan.encodings == DEMO_ENCODINGS
    assert plan.seeds == DEMO_SEEDS
    assert plan.rates == (SIZES["tiny"].rate,)
    assert plan.runs_of_pair == DEMO_SEEDS


def test_options_replace_the_defaults_of_a_size() -> None:
    plan = parse_plan("demo", "copy", "all", 7, [0.1])

    assert [task.name for task in plan.tasks] == ["copy"]
    assert plan.encodings == tuple(ENCODINGS)
    assert plan.seeds == 7
    assert plan.rates == (0.1,)


def test_misspelled_size_is_refused_with_a_suggestion() -> None:
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
def test_bad_rates_are_refused(command: Command, tmp_path: Path, rates: str, message: str) -> None:
    status, _, errors = command("study", "suite", "--rates", rates, "--output", tmp_path)

    assert status == 2
    assert errors == f"error: {message}\n"


@pytest.mark.parametrize("size", SIZES)
def test_every_size_supports_every_encoding(size: str, tmp_path: Path) -> None:
    sizing = SIZES[size]
    for task in parse_plan(size, "all", "rope", 1, None).tasks:
        raw = sizing.config(task, "data", 300)
        raw["run"] = {"directory": str(tmp_path)}
        for encoding in ENCODINGS:
            raw["model"]["encoding"] = encoding
            parse_config(raw, "test")
            for split in task.splits:
                assert inapplicable(task, split, encoding) is None


@pytest.mark.parametrize("size", SIZES)
def test_runs_of_every_size_have_its_number_of_tokens(size: str, tmp_path: Path) -> None:
    sizing = SIZES[size]
    assert sizing.rate in sizing.rates
    for task in parse_plan(size, "all", "rope", 1, None).tasks:
        raw = sizing.config(task, "data", 300)
        raw["run"] = {"directory": str(tmp_path)}
        training = parse_config(raw, "test").training
        num_tokens = training.steps * sizing.batch * task.tokens("train")

        assert training.global_batch_size % training.micro_batch_size == 0
        assert num_tokens > sizing.tokens / 2
        assert num_tokens <= sizing.tokens


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Plans that the command would train."""
    plans: list[Plan] = []

    def suite(plan: Plan, *arguments: Any, **options: Any) -> None:
        plans.append(plan)

    monkeypatch.setattr(suite_module, "suite", suite)
    return plans


SELECTION = ("--tasks", "copy,flip_flop", "--encodings", "rope,tape", "--seeds", 3, "--rates", "0.01")


def selected_plan() -> Plan:
    """Return the plan that SELECTION describes."""
    return parse_plan("tiny", "copy,flip_flop", "rope,tape", 3, [0.01])


def facts(plan: Plan) -> dict[str, Any]:
    """Return a plan's fields with the definitions of its tasks, which can be compared."""
    return vars(plan) | {"tasks": [task.definition for task in plan.tasks]}


def test_options_select_the_runs(command: Command, trained: list[Plan], tmp_path: Path) -> None:
    status, _, errors = command("study", "suite", *SELECTION, "--output", tmp_path)

    assert status == 0, errors
    (plan,) = trained
    assert facts(plan) == facts(selected_plan())


class DryRun(NamedTuple):
    """A dry run of SELECTION.

    Attributes:
        words: Command.
        out: Folder of the suite.
        file: Plan that the command writes.
    """

    words: list[Any]
    out: Path
    file: Path


@pytest.fixture(params=[PLAN, "my_plan.json"])
def dry_run(request: pytest.FixtureRequest, tmp_path: Path) -> DryRun:
    """A dry run with the default file for the plan, or another one."""
    out = tmp_path / "out"
    words: list[Any] = ["study", "suite", *SELECTION, "--output", out, "--dry-run"]
    if request.param == PLAN:
        return DryRun(words, out, out / PLAN)
    file = tmp_path / "plans" / request.param
    return DryRun([*words, "--plan", file], out, file)


def test_dry_run_writes_the_plan(command: Command, trained: list[Plan], dry_run: DryRun) -> None:
    status, printed, errors = command(*dry_run.words)

    assert status == 0, errors
    assert not trained
    assert "12 runs: copy, flip_flop; rope, tape; 3 seeds; learning rate 0.01" in printed
    assert "8 comparisons with rope: a significant difference needs at least 6 seeds" in printed
    assert f"--plan {dry_run.file}" in printed
    assert facts(read_plan(dry_run.file)) == facts(selected_plan())


def test_dry_run_does_not_replace_a_plan(command: Command, dry_run: DryRun) -> None:
    command(*dry_run.words)

    assert_refused(command(*dry_run.words), f"{dry_run.file} exists: remove it, or give another file as --plan")


def test_edited_plan_is_trained(command: Command, trained: list[Plan], dry_run: DryRun) -> None:
    command(*dry_run.words)
    content = json.loads(dry_run.file.read_text())
    content |= {"tasks": ["copy"], "left_out": ["flip_flop (too long)"]}
    dry_run.file.write_text(json.dumps(content))

    status, _, errors = command("study", "suite", "--plan", dry_run.file, "--output", dry_run.out)

    assert status == 0, errors
    expected = replace(parse_plan("tiny", "copy", "rope,tape", 3, [0.01]), left_out=("flip_flop (too long)",))
    (plan,) = trained
    assert facts(plan) == facts(expected)


@pytest.mark.parametrize("option", [("--cell", 1), ("--slurm", "--time 60"), ("--repeat", 1)], ids=["cell", "slurm", "repeat"])
def test_dry_run_refuses_options_that_train(
    command: Command, trained: list[Plan], tmp_path: Path, option: tuple[str, Any]
) -> None:
    name, value = option

    assert_refused(
        command("study", "suite", "--dry-run", name, value, "--output", tmp_path),
        f"{name}: not allowed with --dry-run",
    )
    assert not trained
    assert not list(tmp_path.iterdir())


def test_description_names_the_learning_rates_to_search() -> None:
    plan = parse_plan("tiny", "copy", "rope", 1, [0.001, 0.01])

    assert plan.describe() == "at least 5 runs: copy; rope; 1 seed; a learning rate of 0.001, 0.01"


@pytest.mark.parametrize(
    ("encodings", "test", "needed"),
    [
        # copy has three test splits. The runs of five seeds have 252 divisions, and 2 / 252 is below 0.05 / 6.
        ("rope,tape,nope", "permutation", "6 comparisons with rope: a significant difference needs at least 5 seeds"),
        ("rope", "permutation", None),
        ("tape,nope", "permutation", None),
        ("rope,tape", "welch", None),
    ],
)
def test_needed_seeds_depend_on_the_number_of_comparisons(encodings: str, test: str, needed: str | None) -> None:
    plan = parse_plan("tiny", "copy", encodings, 1, None, test)

    assert plan.describe_needed_seeds() == needed


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / PLAN
    parse_plan("tiny", "copy", "rope", 1, [0.01]).write(path)
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ["copies"]}, "tasks: 'copies' is not a task"),
        ({"seeds": 0}, "seeds: must be greater than or equal to 1, got 0"),
        ({"seed": 1}, "seed: Extra inputs are not permitted"),
        ({"test": "sign"}, "test: 'sign' is not a test: choose one of permutation, welch"),
    ],
    ids=str,
)
def test_wrong_content_of_a_plan_file_is_refused(
    command: Command, trained: list[Plan], plan_file: Path, changes: dict[str, Any], message: str
) -> None:
    content = json.loads(plan_file.read_text())
    plan_file.write_text(json.dumps(content | changes))

    assert_refused(
        command("study", "suite", "--plan", plan_file, "--output", plan_file.parent),
        f"{plan_file}: {message}",
    )
    assert not trained


def test_selection_beside_a_plan_file_is_refused(command: Command, trained: list[Plan], plan_file: Path) -> None:
    assert_refused(
        command("study", "suite", "--plan", plan_file, "--output", plan_file.parent, "--tasks", "copy"),
        "--tasks: the file of --plan has its own: remove one of them",
    )
    assert not trained


def test_cell_beside_a_plan_file_is_refused(command: Command, trained: list[Plan], plan_file: Path) -> None:
    assert_refused(
        command("study", "suite", "--plan", plan_file, "--output", plan_file.parent, "--cell", 1),
        "not allowed with argument",
    )
    assert not trained


def test_unreadable_plan_files_are_refused(command: Command, trained: list[Plan], tmp_path: Path) -> None:
    truncated = tmp_path / "truncated.json"
    truncated.write_text("{")

    def errors_of(path: Path) -> str:
        _, _, errors = command("study", "suite", "--plan", path, "--output", tmp_path)
        return errors

    assert f"no plan at {tmp_path}/none.json: --dry-run writes one" in errors_of(tmp_path / "none.json")
    assert f"{truncated}: Expecting property name" in errors_of(truncated)
    assert f"Is a directory: '{tmp_path}'" in errors_of(tmp_path)
    assert not trained


def test_fixed_rates_have_a_known_number_of_runs() -> None:
    plan = replace(parse_plan("tiny", "copy", "rope", 1, [0.001, 0.01]), fixed_rates=True, tuning_seeds=3)

    assert plan.describe() == "7 runs: copy; rope; 1 seed; a learning rate of 0.001, 0.01"


def test_options_choose_the_search_and_the_test(command: Command, trained: list[Plan], tmp_path: Path) -> None:
    words = ("--tuning-seeds", 3, "--fixed-rates", "--test", "welch")
    status, _, errors = command("study", "suite", *SELECTION, *words, "--output", tmp_path)

    assert status == 0, errors
    (plan,) = trained
    assert facts(plan) == facts(replace(selected_plan(), tuning_seeds=3, fixed_rates=True, test="welch"))
