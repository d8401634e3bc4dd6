"""Diagnoses from heartbeats: no store, no threads, no waiting."""

from collections.abc import Sequence

import pytest

from megatape.reliability.watch.diagnosis import CollectiveFailure, diagnose
from megatape.reliability.watch.heartbeat import RankThread, ThreadProgress, missing_heartbeat
from megatape.reliability.watch.peer import Peer
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.reliability.watch.verdict import FaultKind, Verdict
from tests.helpers.processes.heartbeats import STEP, beat

TIMEOUTS = WatchTimeouts(period=2.0, silence=300.0, suspicion=10.0)
FAILURE = CollectiveFailure(1, "RuntimeError: gloo: connection lost", TIMEOUTS.suspicion + 3 * TIMEOUTS.period)


def peers(*counts: int, timeout: float = STEP) -> list[Peer]:
    """Ranks that have begun so many collectives of step 7."""
    return [Peer(rank, beat(count, timeout)) for rank, count in enumerate(counts)]


def judge(ranks: Sequence[Peer], failure: CollectiveFailure | None = None) -> Verdict | None:
    diagnosis = diagnose(ranks, TIMEOUTS, failure)
    if diagnosis is None:
        return None
    return diagnosis.verdict()


def test_ranks_that_work() -> None:
    assert judge(peers(5, 5, 4)) is None


@pytest.mark.parametrize(
    ("timeout", "failure", "max_silence"),
    [
        # The timeout of the phase decides.
        (STEP, None, STEP),
        (1800.0, None, TIMEOUTS.silence),
        (STEP, FAILURE, TIMEOUTS.suspicion),
    ],
)
def test_silence(timeout: float, failure: CollectiveFailure | None, max_silence: float) -> None:
    """The rank is dead, frozen or cut off, whether or not it is behind."""
    ranks = peers(5, 5, 5, timeout=timeout)
    ranks[2].silent = max_silence
    young = failure and failure._replace(seconds=0.0)
    assert judge(ranks, young) is None
    ranks[2].silent += TIMEOUTS.period
    cause = f"rank 2 (host n1, process 8) died, is frozen or was cut off in step 7: no heartbeat for {max_silence:.0f} s"
    verdict = Verdict(FaultKind.SILENT, cause, rank=2)
    assert judge(ranks, young) == verdict
    assert judge(ranks[2:], young) == verdict, "a rank that watches one other"
    ranks[2].has_left = True
    assert judge(ranks, young) is None


def test_a_rank_that_never_started() -> None:
    silent = Peer(1, missing_heartbeat(TIMEOUTS), silent=TIMEOUTS.silence + TIMEOUTS.period)
    verdict = judge([*peers(5), silent])
    assert verdict is not None
    assert verdict.cause.startswith("rank 1 (which never started) died, is frozen or was cut off in starting: no heartbeat")


def test_hang() -> None:
    """The rank that has begun the fewest collectives is at fault. A rank waiting for it may in turn keep others waiting."""
    ranks = peers(9, 9, 4, 6)
    ranks[3].behind[RankThread.MAIN] = 2 * STEP
    ranks[2].behind[RankThread.MAIN] = STEP
    assert judge(ranks) is None
    ranks[2].behind[RankThread.MAIN] += TIMEOUTS.period
    cause = "rank 2 (host n1, process 8) hangs in step 7: ranks 0-1, 3 waited 60 s for it"
    assert judge(ranks) == Verdict(FaultKind.HANGING, cause, rank=2)
    assert judge(ranks[2:3]) is None, "only rank 0, which watches all, can tell"


def test_hang_in_the_background() -> None:
    """A background thread hangs. Each main thread waits for its own background thread, so none is behind."""

    def saving(rank: int, count: int, behind: float) -> Peer:
        peer = Peer(rank, beat(5, background=ThreadProgress("the save after step 4", 300.0, count)))
        peer.behind[RankThread.BACKGROUND] = behind
        return peer

    ranks = [saving(0, 7, 0.0), saving(1, 6, 300.0), saving(2, 7, 0.0)]
    assert judge(ranks) is None
    ranks[1].behind[RankThread.BACKGROUND] += TIMEOUTS.period
    cause = "rank 1 (host n1, process 8) hangs in the save after step 4: ranks 0, 2 waited 300 s for it"
    assert judge(ranks) == Verdict(FaultKind.HANGING, cause, 1, RankThread.BACKGROUND)
    ranks[1].behind[RankThread.BACKGROUND] = TIMEOUTS.period
    other = FAILURE._replace(rank=0)
    gave_up = f"rank 1 (host n1, process 8) hangs in the save after step 4, and others gave up waiting for it: {other}"
    expected = Verdict(FaultKind.HANGING, gave_up, 1, RankThread.BACKGROUND)
    assert judge(ranks, other) == expected, "not the rank whose collective failed, nor the network"
    ranks[1].heartbeat = beat(5, background=ThreadProgress(num_collectives=6))
    ranks[1].behind[RankThread.BACKGROUND] = 2 * TIMEOUTS.stall
    assert judge(ranks) is None, "a rank that has not begun the save is judged by its step"


def test_network() -> None:
    """No rank is accused if all are alive and none is behind. The rank that reported the failure never is."""
    network = (
        "all ranks are alive, but a collective failed, perhaps by the network: rank 1: RuntimeError: gloo: connection lost"
    )
    network_verdict = Verdict(FaultKind.NETWORK, network)
    assert judge(peers(5, 5, 5), FAILURE) == network_verdict
    assert judge(peers(5, 5, 5)[:1], FAILURE) is None, "only rank 0, which watches all, can tell"
    early = FAILURE._replace(seconds=TIMEOUTS.suspicion + 2 * TIMEOUTS.period)
    assert judge(peers(5, 5, 5), early) is None, "a rank that died is known to be silent only later"
    gave_up = f"rank 2 (host n1, process 8) hangs in step 7, and others gave up waiting for it: {FAILURE}"
    for rank, expected in ((1, network_verdict), (2, Verdict(FaultKind.HANGING, gave_up, rank=2))):
        ranks = peers(5, 5, 5)
        ranks[rank] = Peer(rank, beat(4))
        ranks[rank].behind[RankThread.MAIN] = TIMEOUTS.period
        assert judge(ranks, FAILURE) == expected
