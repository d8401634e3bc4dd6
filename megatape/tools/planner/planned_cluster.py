"""Cluster that a run is planned for, and a check that its nodes fit the ranks."""

from dataclasses import dataclass
from typing import Self

from megatape.accounting.gpus import Gpu, load_gpu
from megatape.config import ClusterConfig, ParallelConfig
from megatape.errors import UserError
from megatape.utils.text.units import plural


@dataclass(frozen=True)
class PlannedCluster:
    """Machines and their GPUs.

    Attributes:
        machines: Cluster section.
        gpu: Data sheet of the GPU.
        correction: Measured seconds of a step on one such GPU divided by the middle of the estimate, None without a
            measurement. A corrected estimate is a range only because of exchanges between GPUs and the clocks of GPUs training
            together.
    """

    machines: ClusterConfig
    gpu: Gpu
    correction: float | None = None

    @classmethod
    def load(cls, machines: ClusterConfig) -> Self:
        """Return a cluster with the GPU named in its section.

        Raises:
            UserError: The GPU is unknown, or its file does not describe one.
            FileNotFoundError: The GPU's file is missing.
        """
        return cls(machines, load_gpu(machines.gpu))


def check_nodes(parallel: ParallelConfig, gpus_per_node: int) -> None:
    """Check that the ranks of a sample fill nodes evenly.

    Args:
        parallel: Parallel section.
        gpus_per_node: Ranks on each node.

    Raises:
        UserError: They do not.
    """
    node = gpus_per_node
    sizes = {"parallel.tp": parallel.tp, "parallel.tp x parallel.sp": parallel.tp * parallel.sp}
    sizes["parallel.tp x parallel.sp x parallel.cp"] = parallel.sample_ranks
    for name, size in sizes.items():
        if size % node and node % size:
            raise UserError(
                f"{name} {size} and {plural(node, 'GPU')} per node: one must divide the other, for ranks to fill nodes evenly"
            )
