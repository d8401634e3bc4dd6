"""Planned bytes equal those counted in real runs of four processes, exactly."""

from pathlib import Path
from typing import Any

import pytest

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.traffic.model_traffic import model_traffic
from megatape.accounting.traffic.node_traffic import leaving_node, spanning_warning
from megatape.accounting.traffic.rank_traffic import RankGroup, plan_traffic
from megatape.accounting.workload import Workload
from megatape.distributed.traffic import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Sent
from megatape.utils.text.units import format_bytes
from tests.helpers.planner.plan_cases import configure
from tests.helpers.processes.workers import run_workers

FROZEN = {"training.trainable": ["position", "norms", "embeddings", "blocks.*.mlp.up.weight"]}
LORA: dict[str, Any] = {
    "model.lora": {"rank": 3, "alpha": 3.0, "dropout": 0.1, "targets": ["query", "output", "down"]},
    "training.trainable": ["adapters"],
}
SELECTIVE = {"training.activation_checkpointing": "selective"}
BOTH_AXES: dict[str, dict[str, Any]] = {
    "stage0": {"zero.stage": 0},
    "stage1-accumulated": {"zero.stage": 1, "training.micro_batch_size": 1},
    "stage1-bfloat16": {"zero.stage": 1, "training.precision": "bfloat16", "training.micro_batch_size": 1},
    "stage1-waiting": {"zero.stage": 1, "zero.overlap": False, "training.micro_batch_size": 1},
    "stage2-waiting": {"zero.stage": 2, "zero.overlap": False, "training.micro_batch_size": 1},
    "stage3-waiting": {"zero.stage": 3, "zero.overlap": False, "zero.bucket_size": 2000},
    "stage2-bfloat16": {
        "zero.stage": 2,
        "training.precision": "bfloat16",
        "training.micro_batch_size": 1,
        "model.num_kv_heads": 4,
    },
    "stage3-bfloat16": {"zero.stage": 3, "training.precision": "bfloat16", "zero.bucket_size": 2000} | SELECTIVE,
    "stage3-whole": {"zero.stage": 3, "training.activation_checkpointing": "full"},
    "stage3-ahead": {"zero.stage": 3, "zero.bucket_size": 5000, "training.micro_batch_size": 1},  # a block has 3968
    "stage0-frozen": {"zero.stage": 0} | FROZEN,
    "stage2-frozen": {"zero.stage": 2, "training.micro_batch_size": 1} | FROZEN,
    "stage2-lora": {"zero.stage": 2} | LORA,
    "stage3-rope": {"zero.stage": 3, "zero.bucket_size": 1000, "model.encoding": "rope", "data.mask_documents": True},
}
TENSOR_AXIS = {"stage1": {"zero.stage": 1, "model.attention_bias": "qkvo", "model.qk_norm": True}}
TENSOR_AXIS_ROPE = {"stage3": {"zero.stage": 3, "model.encoding": "rope", "training.activation_checkpointing": "full"}}
DATA_AXIS = {
    "stage3": {"zero.stage": 3, "zero.bucket_size": 3000} | SELECTIVE,
    "stage3-compiled": {"zero.stage": 3, "zero.bucket_size": 3000, "training.compile": True},
    "stage3-copies": {"zero.stage": 3, "zero.bucket_size": 3000, "zero.hpz_ranks": 2, "training.global_batch_size": 16},
}

DATA_AXIS_MORE = {
    "stage2": {"zero.stage": 2, "model.attention_bias": "qkv"},
    "stage3-frozen": {"zero.stage": 3, "zero.bucket_size": 3000} | FROZEN,
    "stage3-lora": {"zero.stage": 3, "zero.bucket_size": 1000} | LORA,
}
# All ranks training the same weights share a sample, so ZeRO's bytes are counted together with attention's.
SEQUENCE_AXIS: dict[str, dict[str, Any]] = {
    "stage0": {"zero.stage": 0, "model.encoding": "fox", "data.mask_documents": True},
    "stage2-bfloat16": {"zero.stage": 2, "training.precision": "bfloat16", "training.micro_batch_size": 1},
}
SEQUENCE_AND_DATA_AXIS: dict[str, dict[str, Any]] = {
    "stage1": {"zero.stage": 1, "model.num_kv_heads": 4},
    "stage3-rope": {"zero.stage": 3, "zero.bucket_size": 1000, "model.encoding": "rope"} | SELECTIVE,
}
SEQUENCE_AND_TENSOR_AXIS: dict[str, dict[str, Any]] = {
    "stage3-whole": {"zero.stage": 3, "training.activation_checkpointing": "full"},
    "stage2-chunks": {"zero.stage": 2, "training.chunk_tokens": 5},  # Two chunks for a rank's 8 tokens
}
CONTEXT_AXIS: dict[str, dict[str, Any]] = {
    "stage1": {"zero.stage": 1, "data.mask_documents": True},
    "stage3-bfloat16": {"zero.stage": 3, "zero.bucket_size": 1000, "training.precision": "bfloat16"} | SELECTIVE,
}
CONTEXT_AND_SEQUENCE_AXIS = {"stage2": {"zero.stage": 2, "training.activation_checkpointing": "full"}}
CONTEXT_AND_TENSOR_AXIS = {"stage0": {"zero.stage": 0, "model.encoding": "rope"}}


def _group_of_weights(world_size: int, tensor_size: int, sequence_size: int, context_size: int) -> str:
    """Return the name of the first group with the ranks of ZeRO's group."""
    replicas = {
        "data": world_size // (tensor_size * sequence_size * context_size),
        "context": context_size,
        "sequence": sequence_size,
    }
    divided = [axis for axis, size in replicas.items() if size > 1]
    if not divided:
        return "data"
    if len(divided) == 1:
        return divided[0]
    if tensor_size == 1 and "data" not in divided:
        return "sample"
    return "replicate"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tensor_size", "sequence_size", "context_size", "cases"),
    [
        pytest.param(4, 1, 1, TENSOR_AXIS, id="tensor axis"),
        pytest.param(1, 1, 1, DATA_AXIS, id="data axis"),
        pytest.param(2, 1, 1, BOTH_AXES, id="both axes"),
        pytest.param(4, 1, 1, TENSOR_AXIS_ROPE, id="tensor axis, rope"),
        pytest.param(1, 1, 1, DATA_AXIS_MORE, id="data axis, more"),
        pytest.param(1, 4, 1, SEQUENCE_AXIS, id="sequence axis"),
        pytest.param(1, 2, 1, SEQUENCE_AND_DATA_AXIS, id="sequence and data axis"),
        pytest.param(2, 2, 1, SEQUENCE_AND_TENSOR_AXIS, id="sequence and tensor axis"),
        pytest.param(1, 1, 4, CONTEXT_AXIS, id="context axis"),
        pytest.param(1, 2, 2, CONTEXT_AND_SEQUENCE_AXIS, id="context and sequence axis"),
        pytest.param(2, 1, 2, CONTEXT_AND_TENSOR_AXIS, id="context and tensor axis"),
    ],
)
def test_planned_bytes_equal_sent_bytes(
    raw_config: dict[str, Any],
    tmp_path: Path,
    tensor_size: int,
    sequence_size: int,
    context_size: int,
    cases: dict[str, dict[str, Any]],
) -> None:
    sample_ranks = tensor_size * sequence_size * context_size
    raw_config["model"] |= {"num_layers": 3, "vocab_size": 301}
    raw_config["training"] |= {"global_batch_size": 8 // sample_ranks, "micro_batch_size": 2}
    raw_config["parallel"] = {"tp": tensor_size, "sp": sequence_size, "cp": context_size}
    results = run_workers(
        "tests.helpers.planner.plan_cases:count_cases", 4, {"config": raw_config, "cases": cases}, tmp_path / "workers"
    )
    weights = _group_of_weights(4, tensor_size, sequence_size, context_size)
    for number, (name, changes) in enumerate(cases.items()):
        config = configure(raw_config, name, changes)
        planned = plan_traffic(TrainingLayout.from_config(config, 4))
        micro_batches = config.num_micro_batches(4)
        overlapped = {
            axis: model_traffic(Workload.from_config(config), axis).overlapped * micro_batches for axis in ("tensor", "context")
        }
        expected: dict[str, Any] = {axis: planned.sent[RankGroup(axis)] for axis in ("tensor", "sequence", "context")}
        expected["other"] = planned.sent[RankGroup.SECOND_COPY]
        expected["overlapped"] = overlapped
        expected[weights] = expected.get(weights, Sent()) + planned.sent[RankGroup.REPLICAS]
        # ZeRO's overlapped bytes are counted with its group.
        overlapped.pop(weights, None)
        # Stages 1 and 2 divide replicated weights' gradients unequally, while the planner averages over ranks.
        expected["tensor"] = Sent(expected["tensor"])
        sums = [counted[number]["tensor"].pop(ALL_REDUCE, 0) for counted in results]
        assert sum(sums) / 4 == pytest.approx(expected["tensor"].pop(ALL_REDUCE, 0), abs=1), name
        for rank, counted in enumerate(results):
            counted[number]["overlapped"].pop(weights, None)
            assert counted[number] == expected, (name, rank)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axis", "size", "ratio", "precision"),
    [
        ("tensor", 2, 1.20, "float32"),
        ("tensor", 4, 1.10, "bfloat16"),
        ("tensor", 8, 1.05, "bfloat16"),
        ("sequence", 2, 1.50, "bfloat16"),
        ("sequence", 8, 1.50, "float32"),
        ("context", 2, 1.50, "bfloat16"),
        ("context", 8, 1.50, "float32"),
    ],
)
def test_tape_over_rope(raw_config: dict[str, Any], axis: str, size: int, ratio: float, precision: str) -> None:
    """Per layer and token, with L R = C, TAPE's tensor-parallel ranks send 20%, 10% and 5% more than RoPE's, and its
    sequence- and context-parallel ranks 50% more.

    The formula counts elements, forward and backward; what layers add to e is sent in the compute precision, like activations.
    It omits what does not grow with the tokens (gradients of replicated weights)."""
    raw_config["parallel"] = {{"tensor": "tp", "sequence": "sp", "context": "cp"}[axis]: size}
    raw_config["training"]["precision"] = precision
    raw_config["zero"] = {"stage": 3}
    per_layer = {}
    for encoding in ("tape", "rope"):
        sent = {}
        for layers in (1, 2):
            for length in (32, 64):
                changes = {"model.encoding": encoding, "model.num_layers": layers, "model.max_positions": 64}
                config = configure(raw_config, "x", changes | {"data.sequence_length": length})
                traffic = model_traffic(Workload.from_config(config), axis)
                sent[layers, length] = traffic.sent.total()
        per_layer[encoding] = (sent[2, 64] - sent[2, 32]) - (sent[1, 64] - sent[1, 32])
    assert per_layer["tape"] / per_layer["rope"] == pytest.approx(ratio, abs=1e-9)


def test_warning_of_samples_on_several_nodes(raw_config: dict[str, Any]) -> None:
    """Four sequence-parallel ranks on nodes of two send 2 of 3 pieces to the other node."""
    config = configure(raw_config, "x", {"parallel.sp": 4, "training.micro_batch_size": 2})
    layout = TrainingLayout.from_config(config, 4)
    assert spanning_warning(layout, 4) is None
    assert spanning_warning(TrainingLayout.from_config(config, 8), 8) is None
    outside = format_bytes(plan_traffic(TrainingLayout.from_config(config, 4)).sent[RankGroup.SEQUENCE].total() * 2 / 3)
    warning = spanning_warning(layout, 2)
    assert warning is not None
    assert "the 4 ranks of a sample (parallel.tp 1 x parallel.sp 4) are on nodes of 2" in warning
    assert f"each sends {outside} per step to other nodes" in warning


def test_bytes_leaving_a_node() -> None:
    ring: Sent = Sent({ALL_GATHER: 300, REDUCE_SCATTER: 200, ALL_REDUCE: 100})
    assert leaving_node(ring, 8, 8) == 0
    assert leaving_node(ring, 16, 8) == pytest.approx(600 / 8)
    # Out of 15 equal messages, 8 go to the other node.
    assert leaving_node(Sent({ALL_TO_ALL: 150}), 16, 8) == pytest.approx(80)
