"""Verdicts are the same after they were sent."""

import json

import pytest

from megatape.errors import ExitStatus
from megatape.reliability.watch.heartbeat import RankThread
from megatape.reliability.watch.verdict import FaultKind, Verdict


@pytest.mark.parametrize("kind", FaultKind)
def test_round_trip(kind: FaultKind) -> None:
    for rank, thread in ((3, RankThread.BACKGROUND), (None, RankThread.MAIN)):
        verdict = Verdict(kind, "its disk is full", rank, thread, ExitStatus.USER_ERROR)
        assert Verdict.parse(json.loads(json.dumps(verdict.values()))) == verdict


def test_which_rank_shows_where_it_is() -> None:
    """A rank that reported its own error has shown the traceback."""
    assert Verdict(FaultKind.HANGING, "rank 1 hangs", rank=1).accuses(1)
    assert not Verdict(FaultKind.HANGING, "rank 1 hangs", rank=1).accuses(0)
    assert not Verdict(FaultKind.ERROR, "rank 1 failed", rank=1).accuses(1)


@pytest.mark.parametrize("values", [[], ["all is well", False, 0], ["unknown", "", 0, "main", 1], ["error", "", 0, "main", []]])
def test_values_of_a_stranger(values: list[object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Verdict.parse(values)
