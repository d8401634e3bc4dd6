"""Offloaded, recomputed and temporary bytes of activations."""

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.activation_memory import FP8_BYTES, plan_activations, recomputed_bytes
from megatape.accounting.memory.memory_parts import MemoryPart
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.accounting.workload import Workload
from megatape.config import load_config
from tests.helpers.checks.slow import slow_but
from tests.helpers.planner.plan_cases import configure

# A longer and deeper run than the fixture's.
LONG = {"data.sequence_length": 256, "model.max_positions": 256, "model.num_layers": 5}


def _workload(raw_config: dict[str, Any], changes: dict[str, Any]) -> Workload:
    return Workload.from_config(configure(raw_config, "x", changes))


def test_offloaded_streams(raw_config: dict[str, Any]) -> None:
    """Host memory has x before every block, e - e_0 before every block but the first, and e_0 once. The device has none."""
    sizes = LONG | {"training.activation_checkpointing": "full"}
    full, offloaded = (
        plan_memory(TrainingLayout.from_config(configure(raw_config, "x", sizes | changes), 1), on_gpu=True)
        for changes in ({}, {"training.activation_checkpointing": "offload"})
    )
    streams = 4 * 256 * ((2 * 5 - 1) * 32 + 4) * 4  # samples, tokens, layers, C = L R, R, bytes
    assert offloaded.host == {MemoryPart.ACTIVATIONS: streams}
    assert full.device[MemoryPart.ACTIVATIONS] + full.device[MemoryPart.POSITION_ENCODING] - streams == (
        offloaded.device[MemoryPart.ACTIVATIONS] + offloaded.device[MemoryPart.POSITION_ENCODING]
    )
    assert full.device[MemoryPart.LARGEST_TEMPORARY] == offloaded.device[MemoryPart.LARGEST_TEMPORARY]


@pytest.mark.parametrize("mode", slow_but(["full"], ["none", "selective", "full", "offload"]))
def test_chunks_divide_recomputed_bytes(raw_config: dict[str, Any], mode: str) -> None:
    """With chunks of a quarter of the tokens, MLP and position update have a quarter in memory at a time."""
    changes = LONG | {"training.activation_checkpointing": mode}
    again = {
        tokens: recomputed_bytes(_workload(raw_config, changes | {"training.chunk_tokens": tokens}), on_gpu=True)
        for tokens in (None, 256, 128, 64)
    }
    part = again[256] - again[128]
    assert part > 0
    assert again[128] - again[64] == part / 2
    if mode in ("full", "offload"):  # Without chunks, the other modes keep that part.
        assert again[256] == again[None]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "chunk"), [("none", "null"), ("offload", "8192")])
def test_memory_of_long_samples_is_linear(mode: str, chunk: str) -> None:
    """Saved activations of the 8B configuration grow linearly with a sample's tokens. docs/results/planned.md has the table."""
    shape = ["parallel.tp=1", "parallel.sp=8", "model.max_positions=131072"]
    training = [f"training.activation_checkpointing={mode}", f"training.chunk_tokens={chunk}"]
    saved = []
    for length in (32_768, 131_072):
        config = load_config("configs/tape_8b_gqa.json", [*shape, *training, f"data.sequence_length={length}"])
        plan = plan_memory(TrainingLayout.from_config(config, 64), on_gpu=True)
        saved.append(sum(plan.device[part] for part in (MemoryPart.ACTIVATIONS, MemoryPart.POSITION_ENCODING)))
    assert saved[1] / saved[0] == pytest.approx(4, rel=0.001)


@pytest.mark.fp8
def test_rounding_to_fp8(raw_config: dict[str, Any]) -> None:
    """The plan has the bytes of torchao's peak while rounding, where the largest matrix is tokens x model.mlp_size."""
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic  # seconds
    from torchao.float8.float8_training_tensor import LinearMMConfig

    matrix = torch.randn(128, 512, dtype=torch.bfloat16)
    held = 0
    peak = 0
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        hp_tensor_to_float8_dynamic(matrix, torch.float8_e4m3fn, LinearMMConfig())
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    assert 0 <= peak - FP8_BYTES * matrix.numel() < 100  # the scale

    raw_config["training"] |= {"precision": "bfloat16", "fp8": "tensorwise"}
    workload = _workload(raw_config, {"model.mlp_size": 512, "zero.stage": 2})
    assert plan_activations(workload, on_gpu=False).temporary == FP8_BYTES * matrix.numel()
