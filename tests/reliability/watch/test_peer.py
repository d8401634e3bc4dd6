"""Times without a heartbeat and without a collective, from heartbeats alone."""

from megatape.reliability.watch.heartbeat import Heartbeat, RankThread, ThreadProgress, missing_heartbeat
from megatape.reliability.watch.peer import Peer, observe
from megatape.reliability.watch.timeouts import WatchTimeouts
from tests.helpers.processes.heartbeats import beat


def new_peers(count: int) -> list[Peer]:
    return [Peer(rank, missing_heartbeat(WatchTimeouts())) for rank in range(count)]


def test_elapsed_time() -> None:
    ranks = new_peers(3)

    def elapsed(*beats: Heartbeat) -> list[tuple[float, float]]:
        observe(ranks, dict(enumerate(beats)), 2.0)
        return [(peer.silent, peer.behind[RankThread.MAIN]) for peer in ranks]

    assert elapsed() == [(2.0, 0.0)] * 3, "before the first heartbeats no rank is behind another"
    assert elapsed(beat(1), beat(2)) == [(0.0, 0.0), (0.0, 0.0), (4.0, 2.0)]
    assert elapsed(beat(1, number=1), beat(2, number=1)) == [(0.0, 2.0), (0.0, 0.0), (6.0, 4.0)]
    assert elapsed(beat(1, phase="step 8", number=2), beat(3)) == [(0.0, 0.0), (0.0, 0.0), (8.0, 6.0)], "a new phase"
    assert ranks[1].heartbeat == beat(3)


def test_elapsed_time_in_the_background() -> None:
    ranks = new_peers(2)

    def elapsed(*counts: int) -> list[float]:
        beats = {rank: beat(5, background=ThreadProgress("a save", 60.0, count)) for rank, count in enumerate(counts)}
        observe(ranks, beats, 2.0)
        return [peer.behind[RankThread.BACKGROUND] for peer in ranks]

    assert elapsed(1, 1) == [0.0, 0.0]
    assert elapsed(1, 2) == [2.0, 0.0]
    assert elapsed(1, 3) == [4.0, 0.0]
    assert elapsed(2, 3) == [0.0, 0.0]
    assert elapsed(2, 3) == [2.0, 0.0]
    assert elapsed(3, 3) == [0.0, 0.0]
