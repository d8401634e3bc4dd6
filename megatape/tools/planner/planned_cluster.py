"""Cluster that a run is planned for: its machines, and the rates of their GPUs."""

from dataclasses import dataclass
from typing import Self

from megatape.accounting.gpus import Gpu, load_gpu
from megatape.config import ClusterConfig


@dataclass(frozen=True)
class PlannedCluster:
    """Machines, and the speed of their GPUs.

    Attributes:
        machines: Number and size of the machines.
        gpu: Their GPU.
        correction: Measured seconds of a step on one such GPU divided by the middle of the estimate, None without a
            measurement. The remaining range of an estimate comes from exchanges between GPUs, and from the clocks of GPUs that
            train together.
    """

    machines: ClusterConfig
    gpu: Gpu
    correction: float | None = None

    @classmethod
    def load(cls, machines: ClusterConfig) -> Self:
        """Return a cluster with the GPU that its section of the configuration names.

        Raises:
            UserError: The name of the GPU is unknown, or its file does not describe a GPU.
            FileNotFoundError: The file of the GPU is missing.
        """
        return cls(machines, load_gpu(machines.gpu))
