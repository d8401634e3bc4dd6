"""Runs record forward and backward pass as CUDA graphs where training.cuda_graphs and their other settings allow it."""

from typing import Any

import pytest
import torch

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.memory_parts import MemoryPart
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import parse_config
from megatape.errors import ConfigError, UserError
from megatape.training.startup.engine.graph_recording import graph_recording
from megatape.zero.graph_limits import records_passes
from tests.helpers.planner.plan_cases import configure
from tests.helpers.runs.cpu_recorder import CpuRecorder

CPU = torch.device("cpu")

UNSUPPORTED = {
    "zero.stage 3": {"zero.stage": 3},
    "parallel.tp, parallel.sp or parallel.cp above 1": {"parallel.tp": 2},
    "data.mask_documents": {"data.mask_documents": True},
    "training.activation_checkpointing offload": {"training.activation_checkpointing": "offload"},
}


@pytest.fixture
def raw(raw_config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration that supports recording its passes."""
    return raw_config | {"zero": {"stage": 2}}


@pytest.mark.parametrize(("case", "settings"), UNSUPPORTED.items())
def test_unsupported_settings(raw: dict[str, Any], case: str, settings: dict[str, Any]) -> None:
    raw["training"]["cuda_graphs"] = True
    with pytest.raises(ConfigError, match=f"training.cuda_graphs true does not support {case}, "):
        configure(raw, "test", settings)
    raw["training"]["cuda_graphs"] = "auto"
    assert not records_passes(configure(raw, "test", settings), 2)


def test_auto_delays_no_transfer_of_gradients(raw: dict[str, Any]) -> None:
    raw["training"]["cuda_graphs"] = "auto"
    config = parse_config(raw, "test")
    assert records_passes(config, 1)
    assert not records_passes(config, 2)
    assert not records_passes(configure(raw, "test", {"zero.offload_optimizer": True}), 1)


@pytest.mark.parametrize(("setting", "expected"), [(False, None), ("auto", False), (True, True)])
def test_requirement(raw: dict[str, Any], setting: Any, expected: bool | None) -> None:
    raw["training"]["cuda_graphs"] = setting
    recording = graph_recording(parse_config(raw, "test"), 1, CPU, CpuRecorder)
    assert (recording.is_required if recording else None) == expected


def test_without_gpu(raw: dict[str, Any]) -> None:
    raw["training"]["cuda_graphs"] = "auto"
    assert graph_recording(parse_config(raw, "test"), 1, CPU) is None
    raw["training"]["cuda_graphs"] = True
    with pytest.raises(UserError, match="training.cuda_graphs true needs a GPU, and this run is on a CPU: set it to auto"):
        graph_recording(parse_config(raw, "test"), 1, CPU)


def test_planned_memory(raw: dict[str, Any]) -> None:
    """A graph holds gradients for all weights in their precision. On a CPU there is no graph."""
    raw["training"]["precision"] = "bfloat16"
    before = parse_config(raw, "test")
    raw["training"]["cuda_graphs"] = True
    config = parse_config(raw, "test")
    memory = plan_memory(TrainingLayout.from_config(config, 1), on_gpu=True)
    graphs = memory.device[MemoryPart.CUDA_GRAPHS]
    assert graphs == 2 * count_parameters(config.model).total + memory.device[MemoryPart.LARGEST_TEMPORARY]
    assert plan_memory(TrainingLayout.from_config(before, 1), on_gpu=True).device_total == memory.device_total - graphs
    assert MemoryPart.CUDA_GRAPHS not in plan_memory(TrainingLayout.from_config(config, 1), on_gpu=False).device
