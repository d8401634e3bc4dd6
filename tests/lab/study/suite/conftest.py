"""Tasks for the tests of the suite."""

import pytest

from megatape.lab.study.suite.sizes import SIZES
from megatape.registry import SYNTHETIC_TASKS, Entry
from tests.helpers.capitals import QUICK


@pytest.fixture
def capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task `capitals`, learned in three steps."""
    monkeypatch.setitem(SYNTHETIC_TASKS, "capitals", Entry("tests.helpers.capitals:Capitals", "capitals"))
    monkeypatch.setitem(SIZES, "tiny", QUICK)
