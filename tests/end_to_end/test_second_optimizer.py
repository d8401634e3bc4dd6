"""A second optimizer takes one function and one registry line: it trains, resumes at every ZeRO stage, and is planned."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor

from megatape import registry
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory import plan_memory
from megatape.accounting.memory_parts import MemoryPart
from megatape.config import OptimizerConfig
from megatape.config.section import Compared
from megatape.distributed.topology import Topology
from megatape.optim.optimizer import Group
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.planner.plan_cases import configure
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import train_cases

STAGES = (0, 1, 2, 3)


class MomentumOptions(OptimizerConfig):
    """SGD with momentum."""

    momentum: Compared[float] = Field(0.9, ge=0, lt=1, description="decay of the momentum")


def momentum(groups: list[Group], options: MomentumOptions) -> torch.optim.Optimizer:
    """SGD with momentum: one tensor of state per weight, and no step count."""
    return torch.optim.SGD(groups, momentum=options.momentum)


ENTRY = registry.OptimizerEntry(
    "tests.end_to_end.test_second_optimizer:momentum",
    "momentum",
    "tests.end_to_end.test_second_optimizer:MomentumOptions",
    state=("momentum_buffer",),
)


def train_momentum(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.OPTIMIZERS, "momentum", ENTRY)
        return train_cases(payload, topology)


@pytest.mark.slow
def test_trains_and_resumes_at_every_stage(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Uninterrupted and resumed runs are bit-identical, the stages agree, and AdamW refuses the checkpoint."""
    raw_config["run"]["directory"] = str(tmp_path)
    raw_config["training"]["steps"] = 4
    raw_config["optimizer"] |= {"kind": "momentum", "learning_rate": 0.1}
    raw_config["checkpoint"] = {"interval": 2, "keep": 2}
    half = {stage: str(tmp_path / f"straight{stage}" / "checkpoints" / "step-00000002") for stage in STAGES}
    cases: list[dict[str, Any]] = []
    for stage in STAGES:
        case = {"name": f"straight{stage}", "set": {"zero.stage": stage}}
        cases += [case, case | {"name": f"resumed{stage}", "resume": half[stage]}]
    cases.append({"name": "other", "set": {"optimizer.kind": "adamw"}, "resume": half[2]})
    results = run_workers(
        "tests.end_to_end.test_second_optimizer:train_momentum",
        2,
        {"config": raw_config, "cases": cases},
        tmp_path / "workers",
        400,
    )
    *trained, other = results[0]
    assert [result.get("error") for result in trained] == [None] * len(trained)
    assert "was trained with optimizer.kind momentum, the configuration says adamw" in other["error"]

    for stage in STAGES:
        manifest = json.loads((Path(half[stage]) / "manifest.json").read_text())
        assert set(manifest["tensors"]) == {"weight", "momentum_buffer"}
        for kind in ("weight", "momentum_buffer"):
            straight, resumed, plain = (
                _tensors(tmp_path / name, kind) for name in (f"straight{stage}", f"resumed{stage}", "straight0")
            )
            assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items()), (stage, kind)
            assert max(float(tensor.abs().max()) for tensor in straight.values()) > 0
            for name, tensor in plain.items():
                assert_close(straight[name], tensor, bounds.TRAINED, floor=1e-12, what=(stage, kind, name))


def test_is_planned(raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has half the state of AdamW."""
    monkeypatch.setitem(registry.OPTIMIZERS, "momentum", ENTRY)
    moments = {}
    for kind in ("adamw", "momentum"):
        config = configure(raw_config, "x", {"optimizer.kind": kind})
        moments[kind] = plan_memory(TrainingLayout.from_config(config, 2), on_gpu=False).device[MemoryPart.MOMENTS]
    assert moments["momentum"] == moments["adamw"] / 2 > 0


def _tensors(run: Path, kind: str) -> dict[str, Tensor]:
    return load_file(run / "checkpoints" / "step-00000004" / f"{kind}-00000.safetensors")
