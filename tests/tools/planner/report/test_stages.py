"""Comparison of the stages of ZeRO, and advice on the best one."""

import re
from typing import Any

import pytest

from megatape.accounting.gpus import Gpu, load_gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.rank_memory import MARGIN
from megatape.accounting.traffic.rank_traffic import RankGroup, plan_traffic
from megatape.config import ClusterConfig, Config
from megatape.model.build import build_model
from megatape.tools.planner.memory_requirements import FRAGMENTATION
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.report.report import report
from megatape.tools.planner.report.stages import plan_stages, stage_advice
from megatape.tools.planner.step_time.speed import TOLERANCE
from tests.helpers.planner.plan_cases import configure

CLUSTER = ClusterConfig(nodes=1, gpus_per_node=2, gpu="h100")


def _slow_links(memory: float = 80e9, bandwidth: float = 1e6) -> Gpu:
    """Return a GPU whose exchanges take most of the time of a step."""
    slow = {"node_bandwidth": bandwidth, "network_bandwidth": bandwidth, "memory": memory}
    return load_gpu("h100").model_copy(update=slow)


@pytest.fixture
def at_stage_3(raw_config: dict[str, Any]) -> Config:
    """Return a configuration at stage 3 with four micro-batches a step."""
    changes = {"zero.stage": 3, "training.micro_batch_size": 1, "training.global_batch_size": 8}
    return configure(raw_config, "x", changes | {"training.precision": "bfloat16"})


def test_stages_are_compared_by_seconds(at_stage_3: Config) -> None:
    """Stage 1 sums gradients once per step, stages 2 and 3 in every micro-batch. Comparing stages 2 and 3 alone hid this."""
    plans = plan_stages(at_stage_3, PlannedCluster(CLUSTER, _slow_links()))
    assert [plan.stage for plan in plans] == [1, 2, 3]  # bfloat16 needs master weights
    for plan in plans:
        config = at_stage_3.model_copy(update={"zero": at_stage_3.zero.model_copy(update={"stage": plan.stage})})
        assert plan.data_bytes == plan_traffic(TrainingLayout.from_config(config, 2)).sent[RankGroup.REPLICAS].total()
    assert plans[0].data_bytes < plans[1].data_bytes / 2
    assert plans[0].seconds.middle < 0.6 * plans[2].seconds.middle
    advice = "\n".join(stage_advice(at_stage_3, PlannedCluster(CLUSTER, _slow_links())))
    share = plans[0].seconds.middle / plans[2].seconds.middle
    assert f"stage 1 is the fastest that fits (--set zero.stage=1): its steps take {share:.0%} of the time of stage 3" in advice
    assert "stage 3 (the file's)" in advice


def test_report_states_costs_of_stage_3(at_stage_3: Config) -> None:
    """Stage 3 costs a wait for each micro-batch, and hooks before and after each module, forward and backward."""
    advice = "\n".join(stage_advice(at_stage_3, PlannedCluster(CLUSTER, _slow_links())))
    max_hooks = 2 * 2 * len(list(build_model(at_stage_3.model).modules()))
    assert "after each of 4 backward passes" in advice
    match = re.search(r"([\d,]+) hooks .*: (\d+) per micro-batch", advice)
    assert match
    num_hooks = int(match[1].replace(",", ""))
    num_hooks_per_micro_batch = int(match[2])
    assert num_hooks == 4 * num_hooks_per_micro_batch
    assert 0.8 * max_hooks <= num_hooks_per_micro_batch <= max_hooks


def test_no_advice_if_no_stage_is_faster(at_stage_3: Config) -> None:
    at_stage_1 = at_stage_3.model_copy(update={"zero": at_stage_3.zero.model_copy(update={"stage": 1})})
    advice = stage_advice(at_stage_1, PlannedCluster(CLUSTER, _slow_links()))
    assert "no other stage that fits is faster than stage 1" in advice


def test_no_advice_if_the_estimate_cannot_tell(at_stage_3: Config) -> None:
    """Stage 1 is a few percent faster than stage 2, by less than the scatter of estimates."""
    cluster = PlannedCluster(CLUSTER, _slow_links(bandwidth=1.5e8))
    at_stage_2 = at_stage_3.model_copy(update={"zero": at_stage_3.zero.model_copy(update={"stage": 2})})
    plans = plan_stages(at_stage_2, cluster)
    share = plans[0].seconds.middle / plans[1].seconds.middle
    assert 1 / (1 + TOLERANCE) < share < 0.99
    advice = "\n".join(stage_advice(at_stage_2, cluster))
    assert "stage 2 has steps within 10% of stage 1's, and the estimate cannot tell them apart" in advice
    assert "--set" not in advice


def test_no_advice_if_the_fastest_stage_leaves_no_margin(at_stage_3: Config) -> None:
    gpu = _slow_links()
    plans = {plan.stage: plan for plan in plan_stages(at_stage_3, PlannedCluster(CLUSTER, gpu))}
    needed = plans[1].requirements.gpu.bytes - FRAGMENTATION * gpu.memory
    smaller = _slow_links(needed / (1 - FRAGMENTATION - 0.5 * MARGIN))
    advice = "\n".join(stage_advice(at_stage_3, PlannedCluster(CLUSTER, smaller)))
    assert "stage 1 is the fastest" not in advice


def test_no_advice_if_only_stage_3_is_allowed(at_stage_3: Config) -> None:
    zero = at_stage_3.zero.model_copy(update={"offload_parameters": True})
    offloading = at_stage_3.model_copy(update={"zero": zero})
    assert stage_advice(offloading, PlannedCluster(CLUSTER, _slow_links())) == []


def test_the_report_has_the_comparison(at_stage_3: Config) -> None:
    text = report(at_stage_3.model_copy(update={"cluster": CLUSTER}))
    assert "sent between data-parallel ranks" in text
    assert "stage 3 (the file's)" in text
