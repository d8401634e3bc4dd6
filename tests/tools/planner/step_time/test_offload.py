"""Bytes and time of offloading, computed by hand."""

from typing import Any

import pytest

from megatape.accounting.gpus import load_gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import ClusterConfig
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.step_time.cases import Case
from megatape.tools.planner.step_time.offload import Offload, plan_offload
from megatape.tools.planner.step_time.speed import plan_speed
from megatape.zero.deepspeed_config import Stage3Limits
from tests.helpers.planner.plan_cases import configure

STAGE2 = {"zero.stage": 2, "zero.offload_optimizer": True, "training.precision": "bfloat16"}
STAGE3 = STAGE2 | {"zero.stage": 3}
WEIGHTS = {"zero.stage": 3, "zero.offload_parameters": True, "training.precision": "bfloat16"}


# Bytes for each weight of a rank: gradients and master weights have 4, moments 8, weights 2. Stage 3 copies the gradients of
# each of two micro-batches there and back, then once more. Clipping reads and writes gradients, the optimizer reads them.
@pytest.mark.parametrize(
    ("changes", "overlapped", "exposed", "host"),
    [
        ({}, 0, 0, 0),
        (STAGE2, 0, 4 + 2, 3 * 4 + 2 * 12 + 4 + 2),
        (STAGE3, (2 * 2 + 1) * 4, 2, 3 * 4 + 2 * 12 + 4 + 2),
        (STAGE3 | WEIGHTS, (2 * 2 + 1) * 4 + 2 * 2 * 2, 0, 3 * 4 + 2 * 12 + 4 + 2),
        (WEIGHTS, 2 * 2 * 2, 2, 0),  # Gathered in each micro-batch for the forward pass and for the backward pass
    ],
)
def test_bytes(
    raw_config: dict[str, Any],
    changes: dict[str, Any],
    overlapped: float,
    exposed: float,
    host: float,
) -> None:
    """Nothing is gathered ahead, so nothing stays gathered between forward and backward pass."""
    limits = Stage3Limits(prefetch=1, max_live_parameters=2, persistence_threshold=raw_config["model"]["hidden_size"])
    raw_config["model"]["vocab_size"] = 301
    sizes = {"training.micro_batch_size": 2, "training.global_batch_size": 8, "zero.bucket_size": 1}
    config = configure(raw_config, "x", changes | sizes)
    assert config.num_micro_batches(2) == 2
    share = count_parameters(config.model).total / 2
    offload = plan_offload(TrainingLayout.from_config(config, 2), limits)
    # The tolerance covers padding, and vectors kept gathered by stage 3.
    assert offload.overlapped_bytes == pytest.approx(overlapped * share, rel=0.05)
    assert offload.exposed_bytes == pytest.approx(exposed * share, rel=0.05)
    assert offload.host_bytes == pytest.approx(host * share, rel=0.05)


def test_seconds() -> None:
    gpu = load_gpu("h100").model_copy(update={"host_link": 10.0, "host_bandwidth": 20.0})
    assert Offload(50, 10, 120).seconds(gpu, Case.BAD) == (10, 2 + 20)
    assert Offload(40, 16, 120).seconds(gpu, Case.GOOD) == (5, 2 + 10)


@pytest.mark.parametrize("changes", [STAGE2, STAGE3], ids=["stage 2", "stage 3"])
def test_steps_take_longer(raw_config: dict[str, Any], changes: dict[str, Any]) -> None:
    cluster = ClusterConfig(nodes=1, gpus_per_node=2, gpu="h100")
    gpu = load_gpu("h100").model_copy(update={"host_link": 1e6, "host_bandwidth": 1e6})  # slower than launching the kernels
    plain = configure(raw_config, "x", changes | {"zero.offload_optimizer": False})
    offloaded = configure(raw_config, "x", changes)
    layouts = [TrainingLayout.from_config(config, 2) for config in (plain, offloaded)]
    before, after = (plan_speed(layout, PlannedCluster(cluster, gpu)).seconds for layout in layouts)
    for short, long in zip(before, after, strict=True):
        assert short < long
