"""The monitor of peers, with messages in a store in memory: no threads, no waiting."""

import pytest
import torch.distributed as dist

from megatape.distributed.topology import Topology
from megatape.distributed.values.messages import Messages, StoreEnded
from megatape.errors import ExitStatus
from megatape.reliability.watch.heartbeat import Heartbeat, ThreadProgress
from megatape.reliability.watch.messages import ForeignMessage, WatchMessages
from megatape.reliability.watch.peer_monitor import PeerMonitor
from megatape.reliability.watch.stragglers import STRAGGLER_SHARE
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.reliability.watch.verdict import FaultKind, Verdict

TIMEOUTS = WatchTimeouts(period=2.0, silence=4.0, suspicion=2.0)
NUM_RANKS = 3


@pytest.fixture
def ranks() -> list[WatchMessages]:
    """Messages of each rank."""
    store = dist.HashStore()
    return [WatchMessages(store, rank) for rank in range(NUM_RANKS)]


def send_heartbeats(ranks: list[WatchMessages], number: int, *busy_shares: float) -> None:
    for rank, messages in enumerate(ranks):
        busy_share = None
        if busy_shares:
            busy_share = busy_shares[rank]
        heartbeat = Heartbeat(
            main=ThreadProgress("step 7", 60.0, number),
            process=f"host n{rank}, process 8",
            number=number,
            busy_share=busy_share,
        )
        messages.send_heartbeat(heartbeat)


def create_monitor(ranks: list[WatchMessages], rank: int, warnings: list[str]) -> PeerMonitor:
    return PeerMonitor(Topology(rank, NUM_RANKS, 0), TIMEOUTS, ranks[rank], warnings.append)


def test_a_silent_rank_ends_all(ranks: list[WatchMessages]) -> None:
    main = create_monitor(ranks, 0, [])
    other = create_monitor(ranks, 1, [])
    for number in range(2):
        send_heartbeats(ranks[:2], number)
        assert main.check() is None
        assert other.check() is None
    send_heartbeats(ranks[:2], number=2)
    verdict = main.check()
    assert other.check() == verdict, "a rank that does not watch rank 2"
    assert verdict == Verdict(
        FaultKind.SILENT,
        "rank 2 (which never started) died, is frozen or was cut off in starting: no heartbeat for 4 s",
        rank=2,
        status=ExitStatus.DIED,
    )


def test_a_rank_that_has_left_may_be_silent(ranks: list[WatchMessages]) -> None:
    monitor = create_monitor(ranks, 0, [])
    ranks[2].leave()
    for number in range(6):
        send_heartbeats(ranks[:2], number)
        assert monitor.check() is None


def test_the_first_verdict_holds(ranks: list[WatchMessages]) -> None:
    first = Verdict(FaultKind.ERROR, "rank 1 failed: its disk is full", rank=1, status=ExitStatus.USER_ERROR)
    assert ranks[1].publish_verdict(first)
    assert not ranks[2].publish_verdict(first._replace(cause="rank 2 failed"))
    assert create_monitor(ranks, 0, []).check() == first


def test_a_verdict_never_means_success(ranks: list[WatchMessages]) -> None:
    ranks[1].publish_verdict(Verdict(FaultKind.ERROR, "all is well", status=0))
    verdict = ranks[0].verdict()
    assert verdict is not None
    assert verdict.status == ExitStatus.DIED


def test_a_failed_collective_of_living_ranks(ranks: list[WatchMessages]) -> None:
    monitor = create_monitor(ranks, 0, [])
    ranks[2].report_failed_collective("RuntimeError: gloo: connection lost")
    ranks[1].report_failed_collective("RuntimeError: a later one")
    verdict = None
    for number in range(5):
        send_heartbeats(ranks, number)
        verdict = monitor.check()
    assert verdict is not None
    assert verdict.cause.startswith("all ranks are alive, but a collective failed")
    assert verdict.cause.endswith("rank 2: RuntimeError: gloo: connection lost")


def test_each_straggler_is_reported_once(ranks: list[WatchMessages]) -> None:
    warnings: list[str] = []
    monitor = create_monitor(ranks, 0, warnings)
    for number in range(3):
        send_heartbeats(ranks, number, 0.3, 0.4 + STRAGGLER_SHARE, 0.3)
        assert monitor.check() is None
    assert len(warnings) == 1
    assert warnings[0].startswith("rank 1 (host n1, process 8) keeps the others waiting")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("heartbeat/1", [["step 7", "soon", 1], ["", 0.0, 0], "host n1", 1, None]),
        ("heartbeat/1", ["step 7", 60.0, 1]),
        ("failure", ["all", "it failed"]),
        ("failure", [1]),
        ("verdict", ["error", "it failed", 1]),
        ("verdict", ["error", "it failed", "all", "main", 1]),
    ],
)
def test_values_that_are_not_of_the_watch(name: str, values: list[object]) -> None:
    store = dist.HashStore()
    ranks = [WatchMessages(store, rank) for rank in range(NUM_RANKS)]
    send_heartbeats(ranks, number=1)
    Messages(store, "watch/").put(name, *values)
    with pytest.raises(ForeignMessage):
        create_monitor(ranks, 0, []).check()


def test_a_store_that_has_ended() -> None:
    class EndedStore(dist.HashStore):
        def check(self, keys: list[str]) -> bool:
            raise dist.DistNetworkError("Connection reset by peer")

    with pytest.raises(StoreEnded, match="reset by peer"):
        create_monitor([WatchMessages(EndedStore(), 0)], 0, []).check()
