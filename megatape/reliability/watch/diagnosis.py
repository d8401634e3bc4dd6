"""Diagnosing ranks from their heartbeats, without a store, threads or a clock.

All ranks start the same collectives in the same order, so if some wait for a hanging rank, it is the one that started the
fewest.
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
    """A failed collective, because of a dead rank or the network.

    Attributes:
        rank: First rank reporting the failure, rarely the one at fault.
        error: That rank's error.
        seconds: Time since this rank learned about it.
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
        timeout: Seconds it was allowed to send none.
    """

    peer: Peer
    timeout: float

    def verdict(self) -> Verdict:
        """Return the verdict for the ranks' logs."""
        phase = self.peer.heartbeat.main.phase
        cause = f"{self.peer} died, is frozen or was cut off in {phase}: no heartbeat for {self.timeout:.0f} s"
        return Verdict(FaultKind.SILENT, cause, self.peer.rank)


@dataclass(frozen=True)
class Hang:
    """A rank that others wait for, or waited for until their collective failed.

    Attributes:
        peer: The rank.
        thread: Its thread that is behind.
        waiting: Ranks that have started more collectives.
        failure: The failed collective, None while all still wait.
    """

    peer: Peer
    thread: RankThread
    waiting: Sequence[int]
    failure: CollectiveFailure | None = None

    def verdict(self) -> Verdict:
        """Return the verdict for the ranks' logs."""
        phase, timeout, _ = self.peer.heartbeat.progress(self.thread)
        if self.failure is None:
            cause = f"{self.peer} hangs in {phase}: {name_ranks(self.waiting)} waited {timeout:.0f} s for it"
        else:
            cause = f"{self.peer} hangs in {phase}, and others gave up waiting for it: {self.failure}"
        return Verdict(FaultKind.HANGING, cause, self.peer.rank, self.thread)


@dataclass(frozen=True)
class NetworkFailure:
    """A collective that failed although all ranks are alive.

    Attributes:
        failure: The failed collective.
    """

    failure: CollectiveFailure

    def verdict(self) -> Verdict:
        """Return the verdict for the ranks' logs."""
        cause = f"all ranks are alive, but a collective failed, perhaps by the network: {self.failure}"
        return Verdict(FaultKind.NETWORK, cause)


Diagnosis = Silence | Hang | NetworkFailure


def diagnose(peers: Sequence[Peer], timeouts: WatchTimeouts, failure: CollectiveFailure | None) -> Diagnosis | None:
    """Decide whether the run must end because of a rank or the network.

    Args:
        peers: Ranks that this rank watches. A rank with a single peer, rank 0, only judges its silence.
        timeouts: Watch timeouts.
        failure: First failed collective on any rank, or None.

    Returns:
        The fault, None while the run may continue.
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
    for peer in peers:
        timeout = min(timeouts.silence, peer.heartbeat.main.timeout)
        if failure is not None:
            timeout = timeouts.suspicion
        if peer.silent > timeout and not peer.has_left:
            return Silence(peer, timeout)
    return None


def _find_hang(peers: Sequence[Peer], thread: RankThread) -> Hang | None:
    """Return the rank that others have waited for longer than its phase allows."""
    last = _furthest_behind(peers, thread)
    progress = last.heartbeat.progress(thread)
    if not progress.phase or last.behind[thread] <= progress.timeout:
        return None
    waiting = [peer.rank for peer in peers if peer.num_collectives(thread) > progress.num_collectives]
    return Hang(last, thread, waiting)


def _explain_failure(peers: Sequence[Peer], failure: CollectiveFailure) -> Hang | NetworkFailure:
    """Return the cause of a failed collective: a rank that is behind and did not report the failure, or else the network."""
    for thread in RankThread:
        last = _furthest_behind(peers, thread)
        if last.behind[thread] and last.rank != failure.rank:
            return Hang(last, thread, [], failure)
    return NetworkFailure(failure)


def _furthest_behind(peers: Sequence[Peer], thread: RankThread) -> Peer:
    """Return the rank that has started the fewest collectives. Other waiting ranks may have to wait for it in turn."""
    return min(peers, key=lambda peer: peer.num_collectives(thread))
