"""Parts of the memory plan are consistent."""

from pathlib import Path
from typing import Any

import pytest

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.memory_parts import MemoryPart
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.accounting.shapes.trace import trace_micro_batch
from megatape.accounting.whole_model.checkpoint_size import checkpoint_bytes
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.accounting.workload import Workload
from tests.helpers.checks.slow import slow_but
from tests.helpers.planner.plan_cases import configure
from tests.helpers.processes.workers import run_workers


@pytest.mark.slow
def test_divided_samples_divide_activations(raw_config: dict[str, Any]) -> None:
    """Activations are divided by S, except two copies of A v and A e.

    Attention's backward pass has a copy by heads, and later operations one by tokens. Weights and their state are sharded over
    all ranks, as over data-parallel ranks.
    """
    sizes = {"data.sequence_length": 4096, "model.max_positions": 4096, "zero.stage": 3, "model.num_layers": 6}
    sizes["training.global_batch_size"] = 16
    plans = {
        s: plan_memory(
            TrainingLayout.from_config(configure(raw_config, "x", sizes | {"parallel.sp": s}), 4), on_gpu=False
        ).device
        for s in (1, 2, 4)
    }
    kept = {s: plan[MemoryPart.ACTIVATIONS] + plan[MemoryPart.POSITION_ENCODING] for s, plan in plans.items()}
    assert 0.25 < kept[4] / kept[1] < 0.3
    assert kept[4] / kept[2] == pytest.approx(0.5, rel=0.01)
    assert plans[4][MemoryPart.LARGEST_TEMPORARY] / plans[1][MemoryPart.LARGEST_TEMPORARY] == pytest.approx(0.25, rel=0.02)
    for part in (MemoryPart.WEIGHTS, MemoryPart.GRADIENTS, MemoryPart.MASTER_WEIGHTS, MemoryPart.MOMENTS):
        assert plans[4][part] == plans[1][part], part


def test_parts(raw_config: dict[str, Any]) -> None:
    """Parts sharded by each stage over four data-parallel ranks, for the model's parameters."""
    raw_config["model"]["vocab_size"] = 301
    raw_config["training"]["micro_batch_size"] = 2
    count = count_parameters(configure(raw_config, "x", {}).model).total
    parts = {}
    hosts = {}
    for stage in (0, 1, 2, 3):
        config = configure(raw_config, "x", {"zero.stage": stage, "checkpoint.background": True})
        planned = plan_memory(TrainingLayout.from_config(config, 4), on_gpu=False)
        parts[stage] = planned.device
        hosts[stage] = planned.host
    for stage, (weights, gradients, state) in {0: (1, 1, 1), 1: (1, 1, 4), 2: (1, 4, 4), 3: (4, 4, 4)}.items():
        near = pytest.approx  # The difference is padding, and the vectors kept whole by stage 3.
        assert parts[stage][MemoryPart.GRADIENTS] == near(4 * count / gradients, rel=0.01)
        assert parts[stage][MemoryPart.MOMENTS] == near(8 * count / state, rel=0.01)
        assert parts[stage][MemoryPart.MASTER_WEIGHTS] == near(4 * count / state if stage else 0, rel=0.01)
        assert parts[stage][MemoryPart.WEIGHTS] == near(4 * count / weights, rel=0.03)
        assert hosts[stage] == {MemoryPart.CHECKPOINT_COPIES: near(12 * count / state, rel=0.01)}
    assert MemoryPart.GATHERED_WEIGHTS in parts[3]
    assert MemoryPart.GATHERED_WEIGHTS not in parts[2]


def test_offloading_moves_to_the_host(raw_config: dict[str, Any]) -> None:
    changes = {"zero.stage": 3, "zero.offload_optimizer": True, "zero.offload_parameters": True}
    plain = configure(raw_config, "x", {"zero.stage": 3})
    offloaded = configure(raw_config, "x", changes)
    before = plan_memory(TrainingLayout.from_config(plain, 2), on_gpu=False).device
    after = plan_memory(TrainingLayout.from_config(offloaded, 2), on_gpu=False)
    offloaded_parts = (MemoryPart.WEIGHTS, MemoryPart.GRADIENTS, MemoryPart.MASTER_WEIGHTS, MemoryPart.MOMENTS)
    moved = {part: before[part] for part in offloaded_parts}
    assert after.host == moved | {MemoryPart.FLATTENED_GRADIENTS: before[MemoryPart.GRADIENTS]}
    assert not set(after.host) & set(after.device)


def test_a_second_copy_of_the_weights(raw_config: dict[str, Any]) -> None:
    """Each rank of a pair has half of the sharded weights, besides a quarter of everything."""
    raw_config["training"]["micro_batch_size"] = 2
    plain, copies = (configure(raw_config, "x", {"zero.stage": 3, "zero.hpz_ranks": ranks}) for ranks in (1, 2))
    before, after = (
        plan_memory(TrainingLayout.from_config(config, 4), on_gpu=False).device[MemoryPart.WEIGHTS]
        for config in (plain, copies)
    )
    matrices = sum(
        weight.numel() for weight in trace_micro_batch(Workload.from_config(plain)).model.parameters() if weight.numel() > 32
    )
    assert after - before == 4 * matrices / 2


@pytest.mark.parametrize("stage", slow_but([3], [0, 2, 3]))
def test_moving_average(raw_config: dict[str, Any], stage: int) -> None:
    """The average takes four bytes per trained weight, with the master weights and in checkpoints."""
    changes: dict[str, Any] = {"zero.stage": stage, "zero.offload_optimizer": stage == 3, "checkpoint.background": True}
    changes |= {"training.frozen": ["embeddings"]}
    without, config = (configure(raw_config, "x", changes | {"optimizer.ema_decay": decay}) for decay in (None, 0.999))
    before, after = (plan_memory(TrainingLayout.from_config(one, 2), on_gpu=False) for one in (without, config))
    average = before.device.get(MemoryPart.MOMENTS, before.host.get(MemoryPart.MOMENTS, 0)) / 2
    where = "host" if stage == 3 else "device"
    for part in ("device", "host"):
        expected = dict(getattr(before, part)) | ({MemoryPart.MOVING_AVERAGE: average} if part == where else {})
        if part == "host":
            expected[MemoryPart.CHECKPOINT_COPIES] += average
        assert getattr(after, part) == expected
    sizes = [checkpoint_bytes(one.model, one.training, one.optimizer) for one in (without, config)]
    trained = (sizes[1] - sizes[0]) / 4
    assert trained == count_parameters(config.model).total - 300 * 32


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_host_memory_equals_deepspeeds(raw_config: dict[str, Any], tmp_path: Path, stage: int) -> None:
    """Compared with the tensors of a run on two ranks. Stage 3 has gradients twice."""
    raw_config |= {"zero": {"stage": stage, "offload_optimizer": True}}
    raw_config["training"]["precision"] = "bfloat16"
    planned = plan_memory(TrainingLayout.from_config(configure(raw_config, "x", {}), 2), on_gpu=False).host
    for held in run_workers("tests.helpers.planner.plan_cases:host_tensors", 2, raw_config, tmp_path / "workers"):
        assert {part.value: size for part, size in planned.items()} == pytest.approx(held, rel=0.001)
