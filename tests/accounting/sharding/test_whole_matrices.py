"""State, computation and traffic of optimizers for whole matrices, as planned and as counted in real runs."""

from pathlib import Path
from typing import Any

import pytest

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.memory_parts import MemoryPart
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.accounting.sharding.whole_matrices import plan_matrices
from megatape.accounting.traffic.rank_traffic import RankGroup, plan_traffic
from megatape.accounting.whole_model.checkpoint_size import checkpoint_bytes
from megatape.distributed.traffic import ALL_TO_ALL
from megatape.tools.planner.report.report import report
from tests.helpers.planner.plan_cases import configure
from tests.helpers.processes.workers import run_workers

CASES: dict[str, dict[str, Any]] = {
    "stage0": {"zero.stage": 0},
    "stage1": {"zero.stage": 1, "model.num_kv_heads": 4},
    "stage2": {"zero.stage": 2, "training.precision": "bfloat16", "optimizer.orthogonalized": ["matrix", "position"]},
    "stage3": {"zero.stage": 3, "training.micro_batch_size": 1},
    "lora": {"zero.stage": 2, "model.lora": {"rank": 3, "alpha": 3.0, "targets": ["query", "down"]}}
    | {"training.trainable": ["adapters", "norms"]},
}


@pytest.fixture
def muon_config(raw_config: dict[str, Any]) -> dict[str, Any]:
    raw_config["optimizer"] |= {"kind": "muon"}
    raw_config["training"] |= {"global_batch_size": 8, "micro_batch_size": 2}
    return raw_config


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tensor_size", "sequence_size", "group"),
    [
        (1, 1, "data"),
        (1, 2, "replicate"),
        (2, 1, "data"),
    ],
)
def test_planned_bytes_equal_sent_bytes(
    muon_config: dict[str, Any], tmp_path: Path, tensor_size: int, sequence_size: int, group: str
) -> None:
    """Sums over four ranks are exact. Traffic of ZeRO and tensor parallelism is that of AdamW."""
    muon_config["parallel"] = {"tp": tensor_size, "sp": sequence_size}
    payload = {"config": muon_config, "cases": CASES}
    results = run_workers("tests.helpers.planner.plan_cases:count_cases", 4, payload, tmp_path / "workers")
    for number, (name, changes) in enumerate(CASES.items()):
        config = configure(muon_config, name, changes)
        counted = [rank[number] for rank in results]
        planned = plan_traffic(TrainingLayout.from_config(config, 4))
        sent = sum(rank["other"].get(ALL_TO_ALL, 0) for rank in counted)
        assert planned.sent[RankGroup.ALL] == {ALL_TO_ALL: sent // 4}, name
        assert sent, name
        for rank in counted:
            assert rank[group] == planned.sent[RankGroup.REPLICAS], name
            assert rank["tensor"] == planned.sent[RankGroup.TENSOR], name


def test_state_of_adamw_and_half_of_it(muon_config: dict[str, Any]) -> None:
    """A matrix has one float32 tensor instead of two, on one rank."""
    config = configure(muon_config, "x", {"zero.stage": 2})
    adamw = configure(muon_config | {"optimizer": {"learning_rate": 0.01}}, "x", {"zero.stage": 2})
    matrices = 4 * 2 * (4 * 32 * 32 + 3 * 32 * 40)
    sizes = [checkpoint_bytes(one.model, one.training, one.optimizer) for one in (adamw, config)]
    assert sizes[0] - sizes[1] == matrices
    assert (
        plan_memory(TrainingLayout.from_config(adamw, 1), on_gpu=False).device[MemoryPart.MOMENTS]
        - plan_memory(TrainingLayout.from_config(config, 1), on_gpu=False).device[MemoryPart.MOMENTS]
        == matrices
    )
    assert plan_matrices(TrainingLayout.from_config(config, 1)).state == matrices
    assert plan_matrices(TrainingLayout.from_config(config, 2)).state == matrices // 2  # two layers on two ranks
    assert plan_matrices(TrainingLayout.from_config(adamw, 4)) == plan_matrices(
        TrainingLayout.from_config(config, 1)
    ).__class__(0, 0, 0)
    assert plan_matrices(TrainingLayout.from_config(config, 1)).sent == 0


def test_report(muon_config: dict[str, Any]) -> None:
    cluster = {"cluster.nodes": 2, "cluster.gpus_per_node": 2, "cluster.gpu": "h100"}
    shown = report(configure(muon_config, "x", cluster | {"zero.stage": 2}))
    assert "all ranks, whole matrices" in shown
    assert "of the GPU that updates most whole matrices" in shown
    assert "whole matrices" not in report(configure(muon_config | {"optimizer": {"learning_rate": 0.01}}, "x", cluster))
