"""Memory that a run needs, compared with its cluster's."""

from dataclasses import dataclass

from megatape.accounting.memory.memory_parts import Memory
from megatape.accounting.memory.rank_memory import MARGIN
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.utils.text.units import format_bytes

# Bytes of device memory for driver and library contexts, and the share that the allocator cannot use. Both are assumptions,
# not measurements: they differ by driver, library and run.
CONTEXT = 1.5 * 2**30
FRAGMENTATION = 0.05


@dataclass(frozen=True)
class Requirement:
    """Memory requirement of a GPU or a node's host.

    Attributes:
        bytes: Bytes needed.
        available: Bytes available, None if unknown.
    """

    bytes: float
    available: float | None

    @property
    def fits(self) -> bool:
        """Whether the memory suffices, if only just."""
        return self.available is None or self.bytes <= self.available

    @property
    def fits_with_margin(self) -> bool:
        """Whether the memory suffices with a margin, as for advised settings."""
        return self.available is None or self.bytes <= (1 - MARGIN) * self.available

    def describe(self) -> str:
        """Compare needed and available memory, as in "35.10 GiB of 79.00 GiB: fits"."""
        needed = format_bytes(self.bytes)
        if self.available is None:
            return f"{needed}; cluster.host_gib (--host-gib) compares it with the node's"
        result = "fits" if self.fits else "DOES NOT FIT"
        return f"{needed} of {format_bytes(self.available)}: {result}"


@dataclass(frozen=True)
class MemoryRequirements:
    """Memory requirements of a run.

    Attributes:
        gpu: Requirement per GPU.
        host: Requirement per node's host, None if the run keeps nothing there.
    """

    gpu: Requirement
    host: Requirement | None

    @property
    def fits(self) -> bool:
        """Whether all memory suffices, if only just."""
        return self.gpu.fits and (self.host is None or self.host.fits)

    @property
    def fits_with_margin(self) -> bool:
        """Whether all memory suffices with a margin, as for advised settings."""
        return self.gpu.fits_with_margin and (self.host is None or self.host.fits_with_margin)

    @property
    def by_device(self) -> dict[str, Requirement]:
        """Requirements by the words for their device, such as "of a GPU"."""
        by_device = {"of a GPU": self.gpu}
        if self.host is not None:
            by_device["of a node's host"] = self.host
        return by_device


def memory_requirements(memory: Memory, cluster: PlannedCluster) -> MemoryRequirements:
    """Return the memory needed on a GPU, and on a node's host for all its ranks.

    Args:
        memory: A rank's memory.
        cluster: Cluster of the run.
    """
    on_gpu = memory.device_total + CONTEXT + FRAGMENTATION * cluster.gpu.memory
    of_gpu = Requirement(on_gpu, cluster.gpu.memory)
    if not memory.host:
        return MemoryRequirements(of_gpu, None)
    machines = cluster.machines
    available = None
    if machines.host_gib is not None:
        available = machines.host_gib * 2**30
    of_host = Requirement(memory.host_total * machines.gpus_per_node, available)
    return MemoryRequirements(of_gpu, of_host)
