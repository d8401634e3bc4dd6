"""Plans from options and from files. Every size suits every task and encoding."""

from pathlib import Path

import pytest

from megatape.config import parse_config
from megatape.lab.study.suite.measure import inapplicable
from megatape.lab.study.suite.plan import CORE_ENCODINGS, CORE_SEEDS, CORE_TASKS, SIZES, parse_plan
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from tests.helpers.capitals import QUICK
from tests.helpers.command import Command


@pytest.mark.usefixtures("capitals")
def test_bad_input() -> None:
    plan = parse_plan("tiny", "all", "all", 2, None)
    assert [task.name for task in plan.tasks] == list(SYNTHETIC_TASKS) and plan.encodings == tuple(ENCODINGS)
    assert plan.rates == QUICK.rates and parse_plan("tiny", "all", "all", 2, [0.1, 0.2]).rates == (0.1, 0.2)
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


def test_a_size_has_its_own_plan() -> None:
    """What is not given is the size's: of `demo` the core, without a choice of rates."""
    plan = parse_plan("demo", None, None, None, None)
    assert ([task.name for task in plan.tasks], plan.encodings) == (list(CORE_TASKS), CORE_ENCODINGS)
    assert (plan.seeds, plan.rates, plan.runs_of_pair) == (CORE_SEEDS, (SIZES["tiny"].rate,), CORE_SEEDS)
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
    assert code == 2 and errors == f"error: {message}\n"


@pytest.mark.parametrize("size", SIZES)
def test_every_size_suits_every_encoding(size: str, tmp_path: Path) -> None:
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
