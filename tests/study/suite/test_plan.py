"""Plans from options and from files."""

import pytest

from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.study.suite.plan import parse_plan
from tests.helpers.capitals import QUICK


@pytest.mark.usefixtures("capitals")
def test_bad_input() -> None:
    plan = parse_plan("tiny", "all", "all", 2, None)
    assert [task.name for task in plan.tasks] == list(SYNTHETIC_TASKS) and plan.encodings == tuple(ENCODINGS)
    assert plan.rates == QUICK.rates and parse_plan("tiny", "all", "all", 2, "0.1, 0.2").rates == (0.1, 0.2)
    for arguments, message in [
        (("huge", "all", "all", 1, None), "size: 'huge' is not a size: choose from tiny, small, base"),
        (("tiny", "capital", "all", 1, None), "tasks: 'capital' is not a task: choose from flip_flop, "),
        (("tiny", "capitals,capitals", "all", 1, None), "tasks: capitals is listed twice"),
        (("tiny", "all", "ropes", 1, None), "'ropes' is not an encoding"),
        (("tiny", "all", "rope,rope", 1, None), "rope is listed twice"),
        (("tiny", "all", "rope", 1, "fast"), "rates: 'fast' is not a number"),
        (("tiny", "all", "rope", 1, "0.1,-1"), "rates: -1 is not between 0 and 1"),
        (("tiny", "all", "rope", 1, "0.1,1e-1"), "rates: 1e-1 is listed twice"),
    ]:
        with pytest.raises(ValueError) as error:
            parse_plan(*arguments)
        assert message in str(error.value)
