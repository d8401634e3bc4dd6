"""Who this process is among all processes of the run."""

import os
import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """Ranks of the run: `rank` of `world_size`, and `local_rank` on this machine (it selects the device).

    rank = data_rank * T + tensor_rank: tensor ranks, which talk most, are neighbours on one machine."""

    rank: int
    world_size: int
    local_rank: int
    tensor_size: int = 1

    @property
    def tensor_rank(self) -> int:
        """Place among the ranks that share a model replica."""
        return self.rank % self.tensor_size

    @property
    def data_rank(self) -> int:
        """Which replica this rank belongs to."""
        return self.rank // self.tensor_size

    @property
    def data_size(self) -> int:
        """Number of replicas."""
        return self.world_size // self.tensor_size

    @property
    def is_main(self) -> bool:
        """Whether this process speaks for the run: console, TensorBoard, state files."""
        return self.rank == 0


def discover(tensor_size: int = 1) -> Topology:
    """Read the ranks from the environment that a launcher made (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).

    Without any of them this process is the whole run. Raises ValueError when only some are there."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if name not in os.environ]
    if len(missing) == len(names):
        for size in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
            if int(os.environ.get(size, "1")) > 1:
                raise ValueError(
                    f"{size} is {os.environ[size]}, but {', '.join(names)} are not set: each of these processes would be a run of its "
                    "own; start with `deepspeed launch/pretrain.py ...` or torchrun"
                )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    elif missing:
        raise ValueError(
            f"the launcher's environment is incomplete: {', '.join(missing)} not set; start with `deepspeed launch/pretrain.py ...`, "
            "or unset the others to run one process"
        )
    rank, world_size, local_rank = (int(os.environ[name]) for name in names[:3])
    return Topology(rank, world_size, local_rank, tensor_size)
