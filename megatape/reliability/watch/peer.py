"""A rank as seen by another one: newest heartbeat, and time without progress."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from megatape.reliability.watch.heartbeat import Heartbeat, RankThread


def _no_time() -> dict[RankThread, float]:
    return dict.fromkeys(RankThread, 0.0)


@dataclass
class Peer:
    """A rank watched by this rank.

    Attributes:
        rank: The rank.
        heartbeat: Newest heartbeat.
        silent: Seconds without a new heartbeat.
        behind: Seconds in which a thread stayed in its phase and started no collective, while another rank was ahead of it.
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
        """Return the number of collectives that a thread has started."""
        return self.heartbeat.progress(thread).num_collectives

    def receive(self, heartbeat: Heartbeat, period: float) -> None:
        """Record the newest heartbeat after another `period` seconds. It may be the same as before."""
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
        peers: Peers to update.
        heartbeats: Rank -> newest heartbeat in the store.
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
