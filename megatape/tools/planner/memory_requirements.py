"""Compares the memory that a run needs with a cluster's, and checks the run's ranks."""

from dataclasses import dataclass

from megatape.accounting.gpus import Gpu
from megatape.accounting.memory import MARGIN, Memory
from megatape.config import ClusterConfig, ParallelConfig
from megatape.errors import UserError
from megatape.utils.units import format_bytes, plural

CONTEXT = 1.5 * 2**30  # Bytes of device memory for contexts of the driver and the libraries.
FRAGMENTATION = 0.05  # Share of device memory that the allocator cannot use.


@dataclass(frozen=True)
class Need:
    """A memory requirement.

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

    def __str__(self) -> str:
        if self.available is None:
            return f"{format_bytes(self.bytes)}; cluster.host_gib (--host-gib) compares it with the node's"
        result = "fits" if self.fits else "DOES NOT FIT"
        return f"{format_bytes(self.bytes)} of {format_bytes(self.available)}: {result}"


def memory_needs(memory: Memory, cluster: ClusterConfig, gpu: Gpu) -> dict[str, Need]:
    """Return the memory needed on a GPU, and with offloading by all ranks on a node's host.

    Args:
        memory: Memory of a rank.
        cluster: Machines of the run.
        gpu: Their GPU.
    """
    on_gpu = memory.device_total + CONTEXT + FRAGMENTATION * gpu.memory
    needs = {"of a GPU": Need(on_gpu, gpu.memory)}
    if memory.host:
        on_host = sum(memory.host.values()) * cluster.gpus_per_node
        available = None
        if cluster.host_gib is not None:
            available = cluster.host_gib * 2**30
        needs["of a node's host"] = Need(on_host, available)
    return needs


def check_nodes(parallel: ParallelConfig, gpus_per_node: int) -> None:
    """Check that the ranks of a sample fill nodes evenly.

    Args:
        parallel: Numbers of ranks.
        gpus_per_node: Number of ranks on each node.

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
