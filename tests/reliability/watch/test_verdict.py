"""Verdicts are the same after they were sent."""

import json

import pytest

from megatape.errors import ExitStatus, UserError
from megatape.reliability.watch.heartbeat import RankThread
from megatape.reliability.watch.verdict import FaultKind, Verdict


@pytest.mark.parametrize("kind", FaultKind)
def test_round_trip(kind: FaultKind) -> None:
    for rank, thread in ((3, RankThread.BACKGROUND), (None, RankThread.MAIN)):
        verdict = Verdict(kind, "its disk is full", rank, thread, ExitStatus.USER_ERROR)
        assert Verdict.parse(json.loads(json.dumps(verdict.values()))) == verdict


def test_only_the_hanging_rank_shows_its_stack() -> None:
    """A rank that reported its own error has shown the traceback."""
    assert Verdict(FaultKind.HANGING, "rank 1 hangs", rank=1).accuses(1)
    assert not Verdict(FaultKind.HANGING, "rank 1 hangs", rank=1).accuses(0)
    assert not Verdict(FaultKind.ERROR, "rank 1 failed", rank=1).accuses(1)


@pytest.mark.parametrize("values", [[], ["all is well", False, 0], ["unknown", "", 0, "main", 1], ["error", "", 0, "main", []]])
def test_values_of_a_stranger(values: list[object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Verdict.parse(values)


def test_errors_of_a_rank() -> None:
    """The first line counts, the status is that of a user's error, and passwords are hidden."""
    verdict = Verdict.of_error(2, OSError("https://me:pa55@example.org/data\nmore"))
    assert verdict == Verdict(FaultKind.ERROR, "rank 2 failed: OSError: https://me:***@example.org/data", 2)
    assert Verdict.of_error(0, UserError("no")).status == ExitStatus.USER_ERROR
