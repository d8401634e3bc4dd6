"""The search of settings finds the best of all, and the smallest change that makes a run fit."""

from collections import defaultdict
from itertools import islice
from operator import ne
from typing import Any

import pytest

from megatape.config import ClusterConfig
from megatape.plan.gpus import load_gpu
from megatape.plan.memory import plan_memory
from megatape.plan.search import CONTEXT, FRAGMENTATION, FREE, Space, saves_more
from megatape.plan.trace import changed
from tests.helpers.plan_cases import configure

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


def _space(raw_config: dict[str, Any], nodes: int, share: float, changes: dict[str, Any]) -> Space:
    """Settings on nodes of two GPUs that have a share of the memory that the run needs."""
    config, cluster = configure(raw_config, "x", LONG | changes), ClusterConfig(nodes=nodes, gpus_per_node=2, gpu="h100")
    needed = plan_memory(changed(config, "training", micro_batch_size=2), cluster.world_size, on_gpu=True).device_total
    memory = (CONTEXT + share * needed) / (1 - FRAGMENTATION)
    return Space(config, cluster, load_gpu("h100").model_copy(update={"memory": memory}))


def test_what_comes_last_needs_least(raw_config: dict[str, Any]) -> None:
    """Also beside a configuration that offloads weights alone. Else ranks and stages that fit are not looked at."""
    space = _space(raw_config, 1, 1.0, {"zero.stage": 3, "zero.offload_parameters": True, "training.micro_batch_size": 1})
    by_ranks = defaultdict[Any, list[float]](list)
    for place, candidate in space.valid.items():
        by_ranks[place[:FREE]].append(candidate.of_gpu.bytes)
    assert len(by_ranks) > 4 and all(needed[-1] == min(needed) for needed in by_ranks.values())


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "share", "changes"), CASES)
def test_the_best_are_those_of_all(raw_config: dict[str, Any], nodes: int, share: float, changes: dict[str, Any]) -> None:
    """Fails if a step down a ladder saves time, or needs more memory, so that pruning drops what is better."""
    space = _space(raw_config, nodes, share, changes)
    fitting = [place for place, candidate in space.valid.items() if candidate.fits]
    best = [place for place in fitting if not any(saves_more(place, other) for other in fitting if other != place)]
    seconds = {place: space.valid[place].seconds for place in best}
    pruned = list(islice(_space(raw_config, nodes, share, changes).fastest(), 5))
    assert set(pruned) <= set(best) and [seconds[place] for place in pruned] == sorted(seconds.values())[:5]

    smallest = space.smallest_change()
    distances = {place: sum(map(ne, space.start, place)) for place in fitting if place != space.start}
    assert (smallest is None) == (not distances)
    if smallest is not None:
        nearest = [place for place, distance in distances.items() if distance == min(distances.values())]
        assert smallest in nearest
        assert space.valid[smallest].seconds == min(space.valid[place].seconds for place in nearest)
