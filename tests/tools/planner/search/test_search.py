"""The search of settings finds the best of all, and the smallest change that makes a run fit."""

import time
from itertools import islice
from typing import Any

import pytest

from megatape.accounting.gpus import load_gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.rank_memory import MARGIN, plan_memory
from megatape.config import ClusterConfig, parse_config, with_settings
from megatape.errors import UserError
from megatape.tools.planner.memory_requirements import CONTEXT, FRAGMENTATION
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.search.search import Search
from megatape.tools.planner.search.search_space import SearchSpace
from tests.helpers.planner.plan_cases import configure

LONG: dict[str, Any] = {
    "data.sequence_length": 4096,
    "model.max_positions": 4096,
    "training.global_batch_size": 8,
    "training.micro_batch_size": 8,
    "zero.bucket_size": 10_000,
}
CASES: list[Any] = [
    pytest.param(1, 0.01, {}, id="nothing fits"),
    pytest.param(1, 0.3, {"model.encoding": "rope", "training.activation_checkpointing": "selective"}, id="some fit"),
    pytest.param(2, 0.2, {"training.precision": "bfloat16", "zero.stage": 2}, id="few fit"),
    pytest.param(2, 2.0, {"model.num_kv_heads": 2, "zero.stage": 3, "zero.offload_optimizer": True}, id="all fit"),
]


def _space(raw_config: dict[str, Any], nodes: int, share: float, changes: dict[str, Any]) -> SearchSpace:
    """Return settings on nodes of two GPUs that have a share of the memory that the run needs."""
    config = configure(raw_config, "x", LONG | changes)
    cluster = ClusterConfig(nodes=nodes, gpus_per_node=2, gpu="h100")
    smaller = with_settings(config, {"training.micro_batch_size": 2})
    needed = plan_memory(TrainingLayout.from_config(smaller, cluster.world_size), on_gpu=True).device_total
    memory = (CONTEXT + share * needed) / (1 - FRAGMENTATION - MARGIN)
    gpu = load_gpu("h100").model_copy(update={"memory": memory})
    return SearchSpace(config, PlannedCluster(cluster, gpu))


def test_search_ends_at_its_limit(raw_config: dict[str, Any]) -> None:
    """A cluster with many ranks has a large number of settings: a search once took minutes."""
    config = configure(raw_config, "x", {})
    cluster = ClusterConfig(nodes=2**16, gpus_per_node=8, gpu="h100")
    started = time.process_time()
    search = Search(SearchSpace(config, PlannedCluster.load(cluster)), limit=0.0)
    assert list(search.fastest()) == []
    assert search.smallest_change() is None
    assert search.timed_out
    assert time.process_time() - started < 5


def test_the_simplest_of_equally_fast_settings_is_advised(raw_config: dict[str, Any]) -> None:
    """A larger micro-batch gains less than the estimate's error, so the file's own stays. Tensor-parallel ranks are dropped."""
    gpu = load_gpu("h100").model_copy(update={"memory_bandwidth": 1e9})  # slower than launching kernels
    cluster = ClusterConfig(nodes=1, gpus_per_node=2, gpu="h100")
    plain = LONG | {"zero.stage": 1, "training.micro_batch_size": 2}
    space = SearchSpace(configure(raw_config, "x", plain), PlannedCluster(cluster, gpu))
    fastest, advised = Search(space).advise()
    assert advised == space.start
    assert fastest[0] != space.start

    sharded = SearchSpace(configure(raw_config, "x", plain | {"parallel.tp": 2}), PlannedCluster(cluster, gpu))
    _, advised = Search(sharded).advise()
    assert advised is not None
    assert sharded.changes(advised)["parallel.tp"] == 1


@pytest.mark.parametrize(("margin", "fits"), [(0.5 * MARGIN, False), (1.5 * MARGIN, True)])
def test_advised_settings_leave_memory_free(raw_config: dict[str, Any], margin: float, fits: bool) -> None:
    """Settings whose estimate fills a GPU to the last byte run out of memory."""
    changes = LONG | {"zero.stage": 1, "training.micro_batch_size": 4}
    config = configure(raw_config, "x", changes)
    cluster = ClusterConfig(nodes=1, gpus_per_node=2, gpu="h100")
    needed = plan_memory(TrainingLayout.from_config(config, cluster.world_size), on_gpu=True).device_total
    memory = (CONTEXT + needed) / (1 - FRAGMENTATION - margin)
    gpu = load_gpu("h100").model_copy(update={"memory": memory})
    space = SearchSpace(config, PlannedCluster(cluster, gpu))
    candidate = space.candidate(space.start)
    assert candidate is not None
    assert candidate.requirements.gpu.fits
    assert candidate.fits == fits


@pytest.mark.parametrize("setting", ["nodes", "gpus_per_node"])
def test_clusters_are_bounded(raw_config: dict[str, Any], setting: str) -> None:
    """Finding the divisors of a billion ranks took minutes."""
    raw_config["cluster"] = {"nodes": 1, "gpus_per_node": 8, "gpu": "h100"} | {setting: 10**9}
    with pytest.raises(UserError, match=f"cluster.{setting}: .*less than or equal to"):
        parse_config(raw_config, "x")


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "share", "changes"), CASES)
def test_pruned_search_finds_the_best(raw_config: dict[str, Any], nodes: int, share: float, changes: dict[str, Any]) -> None:
    """Fails if a step down a grid saves time or needs more memory, so that pruning drops better settings."""
    space = _space(raw_config, nodes, share, changes)
    valid = space.valid()
    fitting = [index for index, candidate in valid.items() if candidate.fits]
    seconds = {}
    for index in fitting:
        larger = [other for other in fitting if other != index and index.needs_no_more_memory(other)]
        if not larger:
            seconds[index] = valid[index].seconds.middle

    fastest = list(islice(Search(_space(raw_config, nodes, share, changes)).fastest(), 5))

    assert set(fastest) <= set(seconds)
    assert [seconds[index] for index in fastest] == sorted(seconds.values())[:5]


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "share", "changes"), CASES)
def test_smallest_change_is_the_fastest_of_the_nearest(
    raw_config: dict[str, Any], nodes: int, share: float, changes: dict[str, Any]
) -> None:
    space = _space(raw_config, nodes, share, changes)
    valid = space.valid()
    num_changes = {}
    for index, candidate in valid.items():
        if candidate.fits and index != space.start:
            pairs = zip(space.start.positions, index.positions, strict=True)
            num_changes[index] = sum(start != position for start, position in pairs)

    smallest = Search(space).smallest_change()

    if not num_changes:
        assert smallest is None
        return
    assert smallest is not None
    fewest = min(num_changes.values())
    nearest = [index for index, number in num_changes.items() if number == fewest]
    assert smallest in nearest
    assert valid[smallest].seconds.middle == min(valid[index].seconds.middle for index in nearest)
