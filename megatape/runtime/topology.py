"""Who this process is among all processes of the run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """Ranks of the run: `rank` of `world_size`, and `local_rank` of `local_size` on this machine (it selects the device)."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes what a run writes once: console, TensorBoard, state files."""
        return self.rank == 0
