"""Ranks of this process: among all processes of a run, and among those on this host."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """Ranks of this process.

    Attributes:
        rank: Rank among all processes.
        world_size: Number of all processes.
        local_rank: Rank among the processes on this host. It selects the device.
        local_size: Number of processes on this host.
    """

    rank: int
    world_size: int
    local_rank: int
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process alone writes console output, metrics and state files."""
        return self.rank == 0


SINGLE_PROCESS = Topology(0, 1, 0)


def name_ranks(ranks: Iterable[int]) -> str:
    """Format ranks for messages: "rank 3", or "ranks 0-5, 7"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    text = ", ".join("-".join(map(str, span)) for span in spans)
    if text.isdecimal():
        return f"rank {text}"
    return f"ranks {text}"
