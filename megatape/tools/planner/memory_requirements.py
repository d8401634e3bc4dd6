"""Memory that a run needs, compared with the memory of its cluster."""

from dataclasses import dataclass

from megatape.accounting.memory import MARGIN
from megatape.accounting.memory_parts import Memory
from megatape.tools.planner.planned_cluster import PlannedCluster

# Bytes of device memory for contexts of the driver and the libraries, and the share that the allocator cannot use. Both are
# assumptions rather than measurements: they differ by driver, library and run.
CONTEXT = 1.5 * 2**30
FRAGMENTATION = 0.05


@dataclass(frozen=True)
class Requirement:
    """Memory requirement of a GPU, or of a node's host.

    Attributes:
        bytes: Bytes needed.
        available: Bytes available, None if the cluster does not state them.
    """

    bytes: float
    available: float | None

    @property
    def fits(self) -> bool:
        """Whether the memory suffices, if only just."""
        return self.available is None or self.bytes <= self.available

    @property
    def fits_with_margin(self) -> bool:
        """Whether the memory suffices with the margin of advised settings."""
        return self.available is None or self.bytes <= (1 - MARGIN) * self.available


@dataclass(frozen=True)
class MemoryRequirements:
    """Memory requirements of a run.

    Attributes:
        gpu: Requirement of each GPU.
        host: Requirement of each node's host, None if the run keeps nothing there.
    """

    gpu: Requirement
    host: Requirement | None

    @property
    def fits(self) -> bool:
        """Whether all memory suffices, if only just."""
        return self.gpu.fits and (self.host is None or self.host.fits)

    @property
    def fits_with_margin(self) -> bool:
        """Whether all memory suffices with the margin of advised settings."""
        return self.gpu.fits_with_margin and (self.host is None or self.host.fits_with_margin)


def memory_requirements(memory: Memory, cluster: PlannedCluster) -> MemoryRequirements:
    """Return the memory needed on a GPU, and by all ranks of a node on its host.

    Args:
        memory: Memory of a rank.
        cluster: Cluster of the run.
    """
    on_gpu = memory.device_total + CONTEXT + FRAGMENTATION * cluster.gpu.memory
    of_gpu = Requirement(on_gpu, cluster.gpu.memory)
    if not memory.host:
        return MemoryRequirements(of_gpu, None)
    available = None
    if cluster.machines.host_gib is not None:
        available = cluster.machines.host_gib * 2**30
    of_host = Requirement(memory.host_total * cluster.machines.gpus_per_node, available)
    return MemoryRequirements(of_gpu, of_host)
