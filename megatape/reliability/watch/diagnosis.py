"""Diagnosis of ranks from their heartbeats, without a store, threads or a clock.

Ranks begin the same collectives in the same order. So the rank that hangs while others wait for it
is the one that has begun the fewest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from megatape.distributed.topology import name_ranks
from megatape.reliability.watch.heartbeat import RankThread
from megatape.reliability.watch.peer import Peer
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.reliability.watch.verdict import FaultKind, Verdict


class CollectiveFailure(NamedTuple):
    """Failed collective. The cause is a dead rank or the network.

    Attributes:
        rank: First rank that reported the failure, rarely the one at fault.
        error: Error of that rank.
        seconds: Time since this rank learned of it.
    """

    rank: int
    error: str
    seconds: float

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.error}"


@dataclass(frozen=True)
class Silence:
    """A rank without heartbeats.

    Attributes:
        peer: The rank.
        timeout: Seconds for which it was allowed to send none.
    """

    peer: Peer
    timeout: float

    def verdict(self) -> Verdict:
        """Return the decision to end all ranks."""
        phase = self.peer.heartbeat.main.phase
        cause = f"{self.peer} died, is frozen or was cut off in {phase}: no heartbeat for {self.timeout:.0f} s"
        return Verdict(FaultKind.SILENT, cause, self.peer.rank)


@dataclass(frozen=True)
class Hang:
    """A rank for which others wait, or waited until their collective failed.

    Attributes:
        peer: The rank.
        thread: Its thread that is behind.
        waiting: Numbers of the ranks that have begun more collectives.
        failure: The failed collective, None if all still wait.
    """

    peer: Peer
    thread: RankThread
    waiting: Sequence[int]
    failure: CollectiveFailure | None = None

    def verdict(self) -> Verdict:
        """Return the decision to end all ranks."""
        phase, timeout, _ = self.peer.heartbeat.progress(self.thread)
        if self.failure is None:
            cause = f"{self.peer} hangs in {phase}: {name_ranks(self.waiting)} waited {timeout:.0f} s for it"
        else:
            cause = f"{self.peer} hangs in {phase}, and others gave up waiting for it: {self.failure}"
        return Verdict(FaultKind.HANGING, cause, self.peer.rank, self.thread)


@dataclass(frozen=True)
class NetworkFailure:
    """A failed collective of living ranks.

    Attributes:
        failure: The failed collective.
    """

    failure: CollectiveFailure

    def verdict(self) -> Verdict:
        """Return the decision to end all ranks."""
        cause = f"all ranks are alive, but a collective failed, perhaps by the network: {self.failure}"
        return Verdict(FaultKind.NETWORK, cause)


Diagnosis = Silence | Hang | NetworkFailure


def diagnose(peers: Sequence[Peer], timeouts: WatchTimeouts, failure: CollectiveFailure | None) -> Diagnosis | None:
    """Decide whether the run must end because of a rank or the network.

    Args:
        peers: The ranks that this rank watches. Rank 0 watches all; the others watch rank 0, and
            judge only its silence.
        timeouts: Times of the watch.
        failure: The first collective that failed on any rank, if one has.

    Returns:
        The fault; None while the run may continue.
    """
    silence = _find_silence(peers, timeouts, failure)
    if silence is not None:
        return silence
    if len(peers) == 1:
        return None
    for thread in RankThread:
        hang = _find_hang(peers, thread)
        if hang is not None:
            return hang
    # Wait until a dead rank would have been silent for too long.
    if failure is not None and failure.seconds > timeouts.suspicion + 2 * timeouts.period:
        return _explain_failure(peers, failure)
    return None


def _find_silence(peers: Sequence[Peer], timeouts: WatchTimeouts, failure: CollectiveFailure | None) -> Silence | None:
    """Return the first rank that has sent no heartbeat for too long."""
    for peer in peers:
        timeout = min(timeouts.silence, peer.heartbeat.main.timeout)
        if failure is not None:
            timeout = timeouts.suspicion
        if peer.silent > timeout and not peer.has_left:
            return Silence(peer, timeout)
    return None


def _find_hang(peers: Sequence[Peer], thread: RankThread) -> Hang | None:
    """Return the rank for whose thread others have waited longer than its phase allows."""
    last = _furthest_behind(peers, thread)
    progress = last.heartbeat.progress(thread)
    if not progress.phase or last.behind[thread] <= progress.timeout:
        return None
    waiting = [peer.rank for peer in peers if peer.num_collectives(thread) > progress.num_collectives]
    return Hang(last, thread, waiting)


def _explain_failure(peers: Sequence[Peer], failure: CollectiveFailure) -> Hang | NetworkFailure:
    """Return the cause of a failed collective: a rank that is behind, but for the one that reported it, or the network."""
    for thread in RankThread:
        last = _furthest_behind(peers, thread)
        if last.behind[thread] and last.rank != failure.rank:
            return Hang(last, thread, [], failure)
    return NetworkFailure(failure)


def _furthest_behind(peers: Sequence[Peer], thread: RankThread) -> Peer:
    """Return the rank that has begun the fewest collectives. Other waiting ranks may have to wait for it in turn."""
    return min(peers, key=lambda peer: peer.num_collectives(thread))
