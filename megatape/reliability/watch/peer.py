"""Rank as another rank sees it: its newest heartbeat, and the time without progress."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from megatape.reliability.watch.heartbeat import Heartbeat, RankThread


def _no_time() -> dict[RankThread, float]:
    return dict.fromkeys(RankThread, 0.0)


@dataclass
class Peer:
    """Rank watched by this rank.

    Attributes:
        rank: Number of the rank.
        heartbeat: Newest heartbeat.
        silent: Seconds without a new heartbeat.
        behind: Seconds of each thread in its phase without a new collective while another rank has begun more there.
        has_left: Whether it has ended its work without an error.
    """

    rank: int
    heartbeat: Heartbeat
    silent: float = 0.0
    behind: dict[RankThread, float] = field(default_factory=_no_time)
    has_left: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.heartbeat.process})"

    def num_collectives(self, thread: RankThread) -> int:
        """Return the number of collectives that a thread has begun."""
        return self.heartbeat.progress(thread).num_collectives

    def receive(self, heartbeat: Heartbeat, period: float) -> None:
        """Record the newest heartbeat after another `period` seconds, which may be the one before."""
        before = self.heartbeat
        self.heartbeat = heartbeat
        self.silent += period
        if heartbeat != before:
            self.silent = 0.0
        for thread in RankThread:
            self.behind[thread] += period
            if heartbeat.progress(thread) != before.progress(thread):
                self.behind[thread] = 0.0


def observe(peers: Sequence[Peer], heartbeats: Mapping[int, Heartbeat], period: float) -> None:
    """Update the peers.

    Args:
        peers: The peers.
        heartbeats: Heartbeats in the store, by rank.
        period: Seconds since the last update.
    """
    for peer in peers:
        heartbeat = heartbeats.get(peer.rank, peer.heartbeat)
        peer.receive(heartbeat, period)
    for thread in RankThread:
        most = max(peer.num_collectives(thread) for peer in peers)
        for peer in peers:
            if peer.num_collectives(thread) == most:
                peer.behind[thread] = 0.0
