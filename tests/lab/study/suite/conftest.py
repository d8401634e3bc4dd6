"""Tasks and records for the tests of the suite."""

import pytest

from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.sizes import SIZES
from megatape.registry import SYNTHETIC_TASKS, Entry
from tests.helpers.lab.capitals import QUICK
from tests.helpers.lab.suite_records import make_records


@pytest.fixture
def capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task `capitals`, learned in three steps."""
    monkeypatch.setitem(SYNTHETIC_TASKS, "capitals", Entry("tests.helpers.lab.capitals:Capitals", "capitals"))
    monkeypatch.setitem(SIZES, "tiny", QUICK)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Records of two tasks, with the effects of `EFFECTS`."""
    return make_records(["copy", "parity"])
