"""Processor time of a step."""

from typing import Any

import pytest

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.workload import Workload
from megatape.config import ClusterConfig
from megatape.tools.planner.kernels.step_work import eager_work
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.step_time.cases import Case
from megatape.tools.planner.step_time.host import HOOK_SECONDS, LAUNCH_SECONDS, UPDATE_SECONDS, HostWork, host_work
from megatape.tools.planner.step_time.speed import plan_speed
from tests.helpers.planner.plan_cases import configure


def test_seconds() -> None:
    for case in Case:
        launching, update = HostWork(launches=3, hooks=2).seconds(case)
        assert launching == pytest.approx(3 * LAUNCH_SECONDS.of(case) + 2 * HOOK_SECONDS.of(case))
        assert update == UPDATE_SECONDS.of(case)


def test_launches_and_hooks_of_a_step(raw_config: dict[str, Any]) -> None:
    """Every micro-batch launches its kernels. Stage 3 runs hooks around each module, forward and backward."""
    changes = {"training.global_batch_size": 8, "training.micro_batch_size": 2}
    one = configure(raw_config, "x", changes | {"zero.stage": 1})
    three = configure(raw_config, "x", changes | {"zero.stage": 3})
    kernels = sum(eager_work(Workload.from_config(one)).values())
    assert host_work(TrainingLayout.from_config(one, 2)) == HostWork(2 * kernels, 0)
    found = host_work(TrainingLayout.from_config(three, 2))
    assert found.launches == 2 * kernels
    assert found.hooks > 2 * 4 * 10


def test_a_small_model_waits_for_its_processor(raw_config: dict[str, Any]) -> None:
    """The GPU alone would take microseconds for a step."""
    config = configure(raw_config, "x", {"zero.stage": 3})
    layout = TrainingLayout.from_config(config, 1)
    low, high = plan_speed(layout, PlannedCluster.load(ClusterConfig(nodes=1, gpus_per_node=1, gpu="h100"))).seconds
    work = host_work(TrainingLayout.from_config(config, 1))
    assert low == pytest.approx(sum(work.seconds(Case.GOOD)))
    assert high == pytest.approx(sum(work.seconds(Case.BAD)))
