"""The place of this process among all processes of the run."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """The ranks of this process: `rank` of `world_size`, and `local_rank` of `local_size` on this
    machine, which selects the device."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes what a run writes only once: console output, TensorBoard, state files."""
        return self.rank == 0


def name_ranks(ranks: Iterable[int]) -> str:
    """Ranks for messages: "rank 3", or "ranks 0-5, 7"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    text = ", ".join("-".join(map(str, span)) for span in spans)
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"
