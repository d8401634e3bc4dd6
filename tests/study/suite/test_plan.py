"""Plans from options and from files."""

from pathlib import Path

import pytest

from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.study.suite.plan import parse_plan
from tests.helpers.capitals import QUICK
from tests.helpers.command import Command


@pytest.mark.usefixtures("capitals")
def test_bad_input() -> None:
    plan = parse_plan("tiny", "all", "all", 2, None)
    assert [task.name for task in plan.tasks] == list(SYNTHETIC_TASKS) and plan.encodings == tuple(ENCODINGS)
    assert plan.rates == QUICK.rates and parse_plan("tiny", "all", "all", 2, [0.1, 0.2]).rates == (0.1, 0.2)
    for arguments, message in [
        (("huge", "all", "all", 1, None), "size: 'huge' is not a size: choose from tiny, small, base"),
        (("tiny", "capital", "all", 1, None), "tasks: 'capital' is not a task: choose from flip_flop, "),
        (("tiny", "capitals,capitals", "all", 1, None), "tasks: capitals is listed twice"),
        (("tiny", "all", "ropes", 1, None), "'ropes' is not an encoding"),
        (("tiny", "all", "rope,rope", 1, None), "rope is listed twice"),
        (("tiny", "all", "rope", 1, [0.1, 0.1]), "rates: one is listed twice"),
    ]:
        with pytest.raises(ValueError) as error:
            parse_plan(*arguments)
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ("fast", "--rates: expected a number, got 'fast'"),
        ("0.1,-1", "--rates: must be greater than 0, got -1"),
        ("1", "--rates: must be less than 1, got 1"),
        ("0.1,1e-1", "--rates: one is listed twice"),
    ],
)
def test_bad_rates(command: Command, tmp_path: Path, rates: str, message: str) -> None:
    code, _, errors = command("study", "suite", "--rates", rates, "--out", tmp_path)
    assert code == 2 and errors == f"error: {message}\n"
