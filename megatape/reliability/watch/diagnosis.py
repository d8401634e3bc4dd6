"""Diagnosis of ranks from their heartbeats, without a store, threads or a clock.

Ranks begin the same collectives in the same order. So the rank that hangs while others wait for it
is the one that has begun the fewest.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from megatape.distributed.topology import name_ranks
from megatape.reliability.watch.timeouts import WatchTimeouts

# Share of a step's time by which a straggler is busy longer than the median of the others.
STRAGGLER_SHARE = 0.2


class Heartbeat(NamedTuple):
    """State of a rank, as the rank reports it.

    Attributes:
        timeout: Timeout of its phase in seconds.
        phase: Name of its phase.
        num_collectives: Number of collectives that it has begun.
        busy_share: Share of a step in which it waits for no other rank, None while unmeasured.
        process: Host and process id.
        number: Number of heartbeats so far, so that each differs from the last one.
        background_timeout: Timeout of the background thread's work, in seconds.
        background: Name of the background thread's work, "" if it has none.
        num_background: Number of collectives that the background thread has begun.
    """

    timeout: float
    phase: str = "starting"
    num_collectives: int = 0
    busy_share: float | None = None
    process: str = "which never started"
    number: int = 0
    background_timeout: float = 0.0
    background: str = ""
    num_background: int = 0


@dataclass
class Peer:
    """Rank watched by this rank.

    Attributes:
        rank: Number of the rank.
        heartbeat: Newest heartbeat.
        silent: Seconds without a new heartbeat.
        behind: Seconds in its phase without a new collective while another rank has begun more.
        behind_in_background: Seconds in the work of its background thread without a new collective while another rank has
            begun more there.
        has_left: Whether it has ended its work without an error.
    """

    rank: int
    heartbeat: Heartbeat
    silent: float = 0.0
    behind: float = 0.0
    behind_in_background: float = 0.0
    has_left: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.heartbeat.process})"


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


def observe(peers: Sequence[Peer], heartbeats: Mapping[int, Heartbeat], period: float) -> None:
    """Update `peers` with the heartbeats that are in the store after another `period` seconds."""
    for peer in peers:
        last = peer.heartbeat
        peer.heartbeat = heartbeats.get(peer.rank, peer.heartbeat)
        now = peer.heartbeat
        peer.silent += period
        if now != last:
            peer.silent = 0.0
        peer.behind += period
        if (last.num_collectives, last.phase) != (now.num_collectives, now.phase):
            peer.behind = 0.0
        peer.behind_in_background += period
        if (last.num_background, last.background) != (now.num_background, now.background):
            peer.behind_in_background = 0.0
    most = max(peer.heartbeat.num_collectives for peer in peers)
    most_in_background = max(peer.heartbeat.num_background for peer in peers)
    for peer in peers:
        if peer.heartbeat.num_collectives == most:
            peer.behind = 0.0
        if peer.heartbeat.num_background == most_in_background:
            peer.behind_in_background = 0.0


def diagnose(peers: Sequence[Peer], timeouts: WatchTimeouts, failure: CollectiveFailure | None) -> str | None:
    """Decide whether the run must end because of a rank or the network.

    Args:
        peers: The ranks that this rank watches. Rank 0 watches all; the others watch rank 0, and
            judge only its silence.
        timeouts: Times of the watch.
        failure: The first collective that failed on any rank, if one has.

    Returns:
        The cause, which names the rank at fault; None while the run may continue.
    """
    for peer in peers:
        max_silence = min(timeouts.silence, peer.heartbeat.timeout)
        if failure is not None:
            max_silence = timeouts.suspicion
        if peer.silent > max_silence and not peer.has_left:
            return f"{peer} died, is frozen or was cut off in {peer.heartbeat.phase}: no heartbeat for {max_silence:.0f} s"
    if len(peers) == 1:
        return None
    # Find the rank that is furthest behind in its main thread, and in its background thread. Other waiting ranks may have to
    # wait for it in turn.
    last = min(peers, key=lambda peer: peer.heartbeat.num_collectives)
    last_in_background = min(peers, key=lambda peer: peer.heartbeat.num_background)
    beat = last.heartbeat
    background = last_in_background.heartbeat
    if last.behind > beat.timeout:
        waiting = [peer.rank for peer in peers if peer.heartbeat.num_collectives > beat.num_collectives]
        return f"{last} hangs in {beat.phase}: {name_ranks(waiting)} waited {beat.timeout:.0f} s for it"
    if background.background and last_in_background.behind_in_background > background.background_timeout:
        waiting = [peer.rank for peer in peers if peer.heartbeat.num_background > background.num_background]
        waited = f"{name_ranks(waiting)} waited {background.background_timeout:.0f} s for it"
        return f"{last_in_background} hangs in {background.background}: {waited}"
    # Wait until a dead rank would have been silent for too long.
    if failure is not None and failure.seconds > timeouts.suspicion + 2 * timeouts.period:
        if last.behind and last.rank != failure.rank:
            return f"{last} hangs in {beat.phase}, and others gave up waiting for it: {failure}"
        if last_in_background.behind_in_background and last_in_background.rank != failure.rank:
            return f"{last_in_background} hangs in {background.background}, and others gave up waiting for it: {failure}"
        return f"all ranks are alive, but a collective failed, perhaps by the network: {failure}"
    return None


def find_stragglers(peers: Sequence[Peer]) -> dict[int, str]:
    """Find the ranks that keep the others waiting in most steps.

    Returns:
        A warning for each rank that is busy for more of a step than the median of the others by
        STRAGGLER_SHARE; none until all ranks have measured enough steps.
    """
    shares = {peer.rank: peer.heartbeat.busy_share for peer in peers if peer.heartbeat.busy_share is not None}
    warnings: dict[int, str] = {}
    if len(shares) < max(2, len(peers)):
        return warnings
    for peer in peers:
        share = shares[peer.rank]
        usual = statistics.median(shares[rank] for rank in shares if rank != peer.rank)
        if share - usual > STRAGGLER_SHARE:
            work = "it reads samples and makes forward passes"
            warnings[peer.rank] = (
                f"{peer} keeps the others waiting: {work} for {share:.0%} of a step, the others for {usual:.0%}"
            )
    return warnings
