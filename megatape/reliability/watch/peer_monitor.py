"""Watching the other ranks by their messages in the store."""

from collections.abc import Callable

from megatape.distributed.topology import Topology
from megatape.reliability.watch.diagnosis import CollectiveFailure, diagnose
from megatape.reliability.watch.heartbeat import missing_heartbeat
from megatape.reliability.watch.messages import WatchMessages
from megatape.reliability.watch.peer import Peer, observe
from megatape.reliability.watch.stragglers import find_stragglers
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.reliability.watch.verdict import Verdict


class PeerMonitor:
    """Watches the other ranks. Rank 0 watches all ranks; each other rank watches rank 0.

    Args:
        topology: All ranks.
        timeouts: Times of the watch.
        messages: Messages of the ranks.
        warn: Called once for each straggler, with a warning that names it.
    """

    def __init__(
        self, topology: Topology, timeouts: WatchTimeouts, messages: WatchMessages, warn: Callable[[str], object]
    ) -> None:
        watched = [0]
        if topology.is_main:
            watched = list(range(topology.world_size))
        self._peers = [Peer(rank, missing_heartbeat(timeouts)) for rank in watched]
        self._timeouts = timeouts
        self._messages = messages
        self._warn = warn
        self._reported_stragglers: set[int] = set()
        self._seconds_since_failure = 0.0

    def look(self) -> Verdict | None:
        """Read the messages. Call it once a period.

        Returns:
            The verdict of the first rank that has one, None while the run may continue.

        Raises:
            StoreEnded: The store has ended.
            ForeignMessage: A process that is not a rank of this run writes to the store.
        """
        self._read_heartbeats()
        self._warn_of_stragglers()
        failure = self._read_failure()
        diagnosis = diagnose(self._peers, self._timeouts, failure)
        if diagnosis is not None:
            self._messages.publish_verdict(diagnosis.verdict())
        return self._messages.verdict()

    def _read_heartbeats(self) -> None:
        heartbeats = self._messages.heartbeats(peer.rank for peer in self._peers)
        observe(self._peers, heartbeats, self._timeouts.period)
        for peer in self._peers:
            peer.has_left = peer.silent > 0 and self._messages.has_left(peer.rank)

    def _warn_of_stragglers(self) -> None:
        for rank, warning in find_stragglers(self._peers).items():
            if rank not in self._reported_stragglers:
                self._reported_stragglers.add(rank)
                self._warn(warning)

    def _read_failure(self) -> CollectiveFailure | None:
        """Return the first failed collective, and the seconds since this rank learned of it."""
        report = self._messages.failed_collective()
        if report is None:
            return None
        rank, error = report
        self._seconds_since_failure += self._timeouts.period
        return CollectiveFailure(rank, error, self._seconds_since_failure)
