"""Planned activations equal those saved by a real forward pass."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.accounting.memory.saved_activations import count_saved_activations
from megatape.accounting.memory.saved_tensors import saved_bytes
from megatape.accounting.shapes.meta_device import on_shapes
from megatape.accounting.shapes.rank_model import build_rank_model
from megatape.accounting.workload import Workload
from megatape.config import ActivationCheckpointing
from megatape.distributed.mesh import make_mesh
from megatape.distributed.topology import Topology
from megatape.utils.pytorch.torch_internals import fused_on_shapes
from tests.helpers.checks.slow import slow_but
from tests.helpers.models.small_models import model_with
from tests.helpers.planner.plan_cases import configure
from tests.helpers.processes.workers import run_workers

# Three sizes: the fixture's own, a wider one with grouped queries, a longer and deeper one.
SIZES: dict[str, dict[str, Any]] = {
    "small": {},
    "wide": {"model.hidden_size": 128, "model.num_kv_heads": 4, "model.mlp_size": 320, "model.vocab_size": 1000},
    "long": {"data.sequence_length": 256, "model.max_positions": 256, "model.num_layers": 5},
}
KINDS: dict[str, dict[str, Any]] = {
    "tape": {},
    "rope": {"model.encoding": "rope"},
    "lora": {
        "model.lora": {"rank": 3, "alpha": 1.0, "dropout": 0.1, "targets": ["query", "output", "up"]},
        "training.trainable": ["adapters"],
    },
    "interleaved": {"model.num_layers": 8, "model.nope_every": 3},
    "mixture": {"model.num_layers": 8, "model.layers": "tape@20, rope@9, nope, rope@30"},
    "checkpointed": {"training.activation_checkpointing": "full"},
    "offload": {"training.activation_checkpointing": "offload", "model.num_kv_heads": 4},
    "chunks": {"training.chunk_tokens": 20},
    "selective": {"training.activation_checkpointing": "selective", "training.precision": "bfloat16", "model.qk_norm": True},
    "bfloat16": {"training.precision": "bfloat16", "model.attention_bias": "qkvo", "model.qk_norm": True},
}
# Every kind in the small size, and in a larger one
LARGER = {"tape": "wide", "lora": "wide", "bfloat16": "wide", "rope": "long", "checkpointed": "long", "selective": "long"}
LARGER |= {"offload": "long", "chunks": "long"}
LARGER |= {"interleaved": "wide", "mixture": "wide"}
SMALL = [("small", kind) for kind in KINDS]

MODES: tuple[ActivationCheckpointing, ...] = ("none", "selective")


@pytest.mark.parametrize(("size", "kind"), slow_but(SMALL, [*SMALL, *((LARGER[kind], kind) for kind in KINDS)]))
def test_activations_equal_saved_bytes(raw_config: dict[str, Any], size: str, kind: str) -> None:
    config = configure(raw_config, "x", SIZES[size] | KINDS[kind])
    model = model_with(
        config.model,
        trainable=config.training.trainable,
        frozen=config.training.frozen,
        activation_checkpointing=config.training.activation_checkpointing,
        chunk_tokens=config.training.chunk_tokens,
    )
    model.to(getattr(torch, config.training.precision))
    batch = config.training.micro_batch_size, config.data.sequence_length
    workload = Workload.from_config(config)
    assert count_saved_activations(workload, on_gpu=False).total == saved_bytes(model, *batch)
    planned = count_saved_activations(workload, on_gpu=True).total
    with fused_on_shapes(), on_shapes(config.training.precision):  # Plans for a GPU count all layers and tokens.
        assert planned == saved_bytes(build_rank_model(workload, config.model.num_layers), *batch)


@pytest.mark.parametrize("axis", slow_but(["tp"], ["tp", "sp", "cp"]))
def test_activations_of_ranks_of_a_sample(raw_config: dict[str, Any], tmp_path: Path, axis: str) -> None:
    config = configure(raw_config, "x", SIZES["long"] | {f"parallel.{axis}": 2})
    workload = Workload.from_config(config)
    planned = {
        mode: count_saved_activations(replace(workload, activation_checkpointing=mode), on_gpu=False).total for mode in MODES
    }
    for measured in run_workers("tests.accounting.memory.test_saved_activations:measure", 2, config.model_dump(), tmp_path):
        assert planned == measured


def measure(raw: dict[str, Any], topology: Topology) -> dict[ActivationCheckpointing, int]:
    config = configure(raw, "x", {})
    mesh = make_mesh(topology, config.parallel.axes)
    bytes_by_mode = {}
    tensor = mesh["tensor"]
    sequence = mesh["sequence"]
    context = mesh["context"]
    for mode in MODES:
        model = model_with(
            config.model, tensor_axis=tensor, sequence_axis=sequence, context_axis=context, activation_checkpointing=mode
        )
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        bytes_by_mode[mode] = saved_bytes(model, config.training.micro_batch_size, config.data.sequence_length)
    return bytes_by_mode
