"""Finding stragglers: ranks that are slow at every step."""

import statistics
from collections.abc import Sequence

from megatape.reliability.watch.peer import Peer

# How much longer a straggler is busy than the others' median, as a share of a step.
STRAGGLER_SHARE = 0.2


def find_stragglers(peers: Sequence[Peer]) -> dict[int, str]:
    """Find ranks that keep the others waiting in most steps.

    Returns:
        Rank -> warning, for each rank whose busy share exceeds the others' median by STRAGGLER_SHARE. Empty until all ranks
        have measured enough steps.
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
