"""The place of this process among all processes of the run."""

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
