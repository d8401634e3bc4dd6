"""Ranks that are busy for a larger part of a step than others."""

from megatape.reliability.watch.peer import Peer
from megatape.reliability.watch.stragglers import STRAGGLER_SHARE, find_stragglers
from tests.helpers.processes.heartbeats import beat


def test_stragglers() -> None:
    def warnings(*shares: float | None) -> dict[int, str]:
        return find_stragglers([Peer(rank, beat(5, busy_share=share)) for rank, share in enumerate(shares)])

    warning_by_rank = warnings(0.3, 0.3 + 1.1 * STRAGGLER_SHARE, 0.32)
    assert set(warning_by_rank) == {1}
    assert warning_by_rank[1].startswith("rank 1 (host n1, process 8) keeps the others waiting: ")
    assert warning_by_rank[1].endswith(" for 52% of a step, the others for 31%")
    assert warnings(0.3, 0.3 + 0.9 * STRAGGLER_SHARE) == {}
    assert warnings(0.1, 0.9, None) == {}, "one has not measured enough steps"
    assert warnings(0.9) == {}
