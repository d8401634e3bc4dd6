"""Watching the peers through their messages in the store."""

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
    """Watches the peers. Rank 0 watches all ranks; each other rank watches rank 0.

    Args:
        topology: All ranks.
        timeouts: Watch timeouts.
        messages: Messages between the watches.
        warn: Called once per straggler, with a warning naming it.
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

    def check(self) -> Verdict | None:
        """Read the messages. Call it once per period.

        Returns:
            The first verdict of any rank, None while the run may continue.

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
        report = self._messages.failed_collective()
        if report is None:
            return None
        rank, error = report
        self._seconds_since_failure += self._timeouts.period
        return CollectiveFailure(rank, error, self._seconds_since_failure)
