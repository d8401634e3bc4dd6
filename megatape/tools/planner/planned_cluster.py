"""Cluster that a run is planned for."""

from dataclasses import dataclass
from typing import Self

from megatape.accounting.gpus import Gpu, load_gpu
from megatape.config import ClusterConfig


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
