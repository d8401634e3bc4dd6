"""Watching the other ranks by their messages in the store."""

from collections.abc import Callable

from megatape.distributed.topology import Topology
from megatape.errors import ExitStatus
from megatape.reliability.watch.diagnosis import CollectiveFailure, Heartbeat, Peer, diagnose, find_stragglers, observe
from megatape.reliability.watch.messages import Verdict, WatchMessages
from megatape.reliability.watch.timeouts import WatchTimeouts


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
        self._peers = [Peer(rank, Heartbeat(timeouts.stall)) for rank in watched]
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
            RuntimeError: The store has ended.
            TypeError, ValueError: A process that is not a rank of this run writes to the store.
        """
        self._read_heartbeats()
        self._warn_of_stragglers()
        failure = self._read_failure()
        cause = diagnose(self._peers, self._timeouts, failure)
        if cause is not None:
            self._messages.publish_verdict(Verdict(cause, is_diagnosis=True, status=ExitStatus.DIED))
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
