"""Memory of a rank, compared with that of a cluster."""

from megatape.accounting.gpus import load_gpu
from megatape.accounting.memory.memory_parts import Memory, MemoryPart
from megatape.accounting.memory.rank_memory import MARGIN
from megatape.config import ClusterConfig
from megatape.tools.planner.memory_requirements import CONTEXT, FRAGMENTATION, Requirement, memory_requirements
from megatape.tools.planner.planned_cluster import PlannedCluster

CLUSTER = ClusterConfig(nodes=2, gpus_per_node=4, gpu="h100", host_gib=1.0)


def test_ranks_of_a_node_share_its_host() -> None:
    gpu = load_gpu("h100")
    memory = Memory({MemoryPart.WEIGHTS: 2.0**30}, {MemoryPart.MOMENTS: 2.0**28})
    requirements = memory_requirements(memory, PlannedCluster(CLUSTER, gpu))
    assert requirements.gpu == Requirement(2**30 + CONTEXT + FRAGMENTATION * gpu.memory, gpu.memory)
    assert requirements.host == Requirement(2**30, 2**30)
    assert requirements.fits
    assert not requirements.fits_with_margin


def test_no_requirements_without_host_state() -> None:
    requirements = memory_requirements(Memory({MemoryPart.WEIGHTS: 1.0}, {}), PlannedCluster.load(CLUSTER))
    assert requirements.host is None
    assert requirements.fits_with_margin


def test_text() -> None:
    full = Requirement(2.0**30, 2.0**30)
    assert full.fits
    assert not full.fits_with_margin
    assert Requirement((1 - MARGIN) * 2.0**30, 2.0**30).fits_with_margin
    assert full.describe() == "1.00 GiB of 1.00 GiB: fits"
    assert Requirement(2.0**31, 2.0**30).describe() == "2.00 GiB of 1.00 GiB: DOES NOT FIT"
    assert Requirement(2.0**30, None).describe().startswith("1.00 GiB; cluster.host_gib")
