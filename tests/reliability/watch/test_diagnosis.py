"""Diagnoses from heartbeats: no store, no threads, no waiting."""

import pytest

from megatape.reliability.watch.diagnosis import (
    STRAGGLER_SHARE,
    CollectiveFailure,
    Heartbeat,
    Peer,
    diagnose,
    find_stragglers,
    observe,
)
from megatape.reliability.watch.timeouts import WatchTimeouts

TIMEOUTS = WatchTimeouts(period=2.0, silence=300.0, suspicion=10.0)
STEP = 60.0
FAILURE = CollectiveFailure(1, "RuntimeError: gloo: connection lost", TIMEOUTS.suspicion + 3 * TIMEOUTS.period)


def beat(num_collectives: int, timeout: float = STEP, busy_share: float | None = None) -> Heartbeat:
    return Heartbeat(timeout, "step 7", num_collectives, busy_share, "host n1, process 8")


def peers(*counts: int, timeout: float = STEP) -> list[Peer]:
    """Ranks that have begun so many collectives of step 7."""
    return [Peer(rank, beat(count, timeout)) for rank, count in enumerate(counts)]


def test_ranks_that_work() -> None:
    assert diagnose(peers(5, 5, 4), TIMEOUTS, None) is None


@pytest.mark.parametrize(
    ("timeout", "failure", "max_silence"),
    [
        (STEP, None, STEP),  # of the phase
        (1800.0, None, TIMEOUTS.silence),
        (STEP, FAILURE, TIMEOUTS.suspicion),
    ],
)
def test_silence(timeout: float, failure: CollectiveFailure | None, max_silence: float) -> None:
    """The rank is dead, frozen or cut off, whether or not it is behind."""
    ranks = peers(5, 5, 5, timeout=timeout)
    ranks[2].silent = max_silence
    young = failure and failure._replace(seconds=0.0)
    assert diagnose(ranks, TIMEOUTS, young) is None
    ranks[2].silent += TIMEOUTS.period
    cause = f"rank 2 (host n1, process 8) died, is frozen or was cut off in step 7: no heartbeat for {max_silence:.0f} s"
    assert diagnose(ranks, TIMEOUTS, young) == cause
    assert diagnose(ranks[2:], TIMEOUTS, young) == cause, "a rank that watches one other"
    ranks[2].has_left = True
    assert diagnose(ranks, TIMEOUTS, young) is None


def test_a_rank_that_never_started() -> None:
    silent = Peer(1, Heartbeat(TIMEOUTS.stall), silent=TIMEOUTS.silence + TIMEOUTS.period)
    cause = diagnose([*peers(5), silent], TIMEOUTS, None)
    assert cause and cause.startswith("rank 1 (which never started) died, is frozen or was cut off in starting: no heartbeat")


def test_hang() -> None:
    """The rank that has begun the fewest collectives is at fault. A rank waiting for it may in turn keep others waiting."""
    ranks = peers(9, 9, 4, 6)
    ranks[3].behind = 2 * STEP
    ranks[2].behind = STEP
    assert diagnose(ranks, TIMEOUTS, None) is None
    ranks[2].behind += TIMEOUTS.period
    assert diagnose(ranks, TIMEOUTS, None) == "rank 2 (host n1, process 8) hangs in step 7: ranks 0-1, 3 waited 60 s for it"
    assert diagnose(ranks[2:3], TIMEOUTS, None) is None, "only rank 0, which watches all, can tell"


def test_hang_in_the_background() -> None:
    """A background thread hangs. Each main thread waits for its own background thread, so none is behind."""

    def saving(rank: int, count: int, behind: float) -> Peer:
        own = beat(5)._replace(background_timeout=300.0, background="the save after step 4", num_background=count)
        return Peer(rank, own, behind_in_background=behind)

    ranks = [saving(0, 7, 0.0), saving(1, 6, 300.0), saving(2, 7, 0.0)]
    assert diagnose(ranks, TIMEOUTS, None) is None
    ranks[1].behind_in_background += TIMEOUTS.period
    cause = "rank 1 (host n1, process 8) hangs in the save after step 4: ranks 0, 2 waited 300 s for it"
    assert diagnose(ranks, TIMEOUTS, None) == cause
    ranks[1].behind_in_background = TIMEOUTS.period
    other = FAILURE._replace(rank=0)
    gave_up = f"rank 1 (host n1, process 8) hangs in the save after step 4, and others gave up waiting for it: {other}"
    assert diagnose(ranks, TIMEOUTS, other) == gave_up, "not the rank whose collective failed, nor the network"
    ranks[1].heartbeat = ranks[1].heartbeat._replace(background="")
    ranks[1].behind_in_background = 2 * TIMEOUTS.stall
    assert diagnose(ranks, TIMEOUTS, None) is None, "a rank that has not begun the save is judged by its step"


def test_elapsed_time_in_the_background() -> None:
    ranks = [Peer(rank, Heartbeat(TIMEOUTS.stall)) for rank in range(2)]

    def elapsed(*counts: int) -> list[float]:
        beats = {rank: beat(5)._replace(background="a save", num_background=count) for rank, count in enumerate(counts)}
        observe(ranks, beats, 2.0)
        return [peer.behind_in_background for peer in ranks]

    assert elapsed(1, 1) == [0.0, 0.0]
    assert elapsed(1, 2) == [2.0, 0.0]
    assert elapsed(1, 3) == [4.0, 0.0]
    assert elapsed(2, 3) == [0.0, 0.0]
    assert elapsed(2, 3) == [2.0, 0.0]
    assert elapsed(3, 3) == [0.0, 0.0]


def test_network() -> None:
    """No rank is accused if all are alive and none is behind. The rank that reported the failure never is."""
    cause = "all ranks are alive, but a collective failed, perhaps by the network: rank 1: RuntimeError: gloo: connection lost"
    assert diagnose(peers(5, 5, 5), TIMEOUTS, FAILURE) == cause
    assert diagnose(peers(5, 5, 5)[:1], TIMEOUTS, FAILURE) is None, "only rank 0, which watches all, can tell"
    early = FAILURE._replace(seconds=TIMEOUTS.suspicion + 2 * TIMEOUTS.period)
    assert diagnose(peers(5, 5, 5), TIMEOUTS, early) is None, "a rank that died is known to be silent only later"
    gave_up = f"rank 2 (host n1, process 8) hangs in step 7, and others gave up waiting for it: {FAILURE}"
    for rank, expected in ((1, cause), (2, gave_up)):
        ranks = peers(5, 5, 5)
        ranks[rank] = Peer(rank, beat(4), behind=TIMEOUTS.period)
        assert diagnose(ranks, TIMEOUTS, FAILURE) == expected


def test_stragglers() -> None:
    def warnings(*shares: float | None) -> dict[int, str]:
        return find_stragglers([Peer(rank, beat(5, busy_share=share)) for rank, share in enumerate(shares)])

    found = warnings(0.3, 0.3 + 1.1 * STRAGGLER_SHARE, 0.32)
    assert set(found) == {1} and found[1].startswith("rank 1 (host n1, process 8) keeps the others waiting: ")
    assert found[1].endswith(" for 52% of a step, the others for 31%")
    assert warnings(0.3, 0.3 + 0.9 * STRAGGLER_SHARE) == {}
    assert warnings(0.1, 0.9, None) == {}, "one has not measured enough steps"
    assert warnings(0.9) == {}


def test_elapsed_time() -> None:
    ranks = [Peer(rank, Heartbeat(TIMEOUTS.stall)) for rank in range(3)]

    def elapsed(*beats: Heartbeat) -> list[tuple[float, float]]:
        observe(ranks, dict(enumerate(beats)), 2.0)
        return [(peer.silent, peer.behind) for peer in ranks]

    assert elapsed() == [(2.0, 0.0)] * 3, "before the first heartbeats no rank is behind another"
    assert elapsed(beat(1), beat(2)) == [(0.0, 0.0), (0.0, 0.0), (4.0, 2.0)]
    assert elapsed(beat(1)._replace(number=1), beat(2)._replace(number=1)) == [(0.0, 2.0), (0.0, 0.0), (6.0, 4.0)]
    assert elapsed(beat(1)._replace(number=2, phase="step 8"), beat(3)) == [(0.0, 0.0), (0.0, 0.0), (8.0, 6.0)], "a new phase"
    assert ranks[1].heartbeat == beat(3)
