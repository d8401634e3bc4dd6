"""A second optimizer takes one function and one registry line: it trains, resumes at every ZeRO stage, and is planned."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import Field
from torch import Tensor

from megatape import registry
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.memory_parts import MemoryPart
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.config import OptimizerConfig
from megatape.config.section import Compared
from megatape.distributed.topology import Topology
from megatape.optim.optimizer import Group
from megatape.run_folder import RunFolder
from tests.helpers.checks import bounds
from tests.helpers.planner.plan_cases import configure
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import assert_all_close, assert_identical, step_tensors
from tests.helpers.runs.training_cases import train_cases

MODULE = "tests.end_to_end.test_second_optimizer"
STAGES = (0, 1, 2, 3)
KINDS = ("weight", "momentum_buffer")


class MomentumOptions(OptimizerConfig):
    """SGD with momentum."""

    momentum: Compared[float] = Field(0.9, ge=0, lt=1, description="decay of the momentum")


def momentum(groups: list[Group], options: MomentumOptions) -> torch.optim.Optimizer:
    """SGD with momentum: one tensor of state per weight, and no step count."""
    return torch.optim.SGD(groups, momentum=options.momentum)


ENTRY = registry.OptimizerEntry(f"{MODULE}:momentum", "momentum", f"{MODULE}:MomentumOptions", state=("momentum_buffer",))


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
    checkpoints = {stage: RunFolder(tmp_path / f"straight{stage}").checkpoint(2) for stage in STAGES}
    cases: list[dict[str, Any]] = []
    for stage in STAGES:
        changes = {"zero.stage": stage}
        cases.append({"name": f"straight{stage}", "set": changes})
        cases.append({"name": f"resumed{stage}", "set": changes, "resume": str(checkpoints[stage])})
    cases.append({"name": "adamw", "set": {"optimizer.kind": "adamw"}, "resume": str(checkpoints[2])})

    results = run_cases(raw_config, cases, 2, tmp_path / "workers", target=f"{MODULE}:train_momentum", timeout=400)

    adamw = results.pop()
    assert "was trained with optimizer.kind momentum, the configuration says adamw" in adamw["error"]
    assert_no_errors(results)
    for stage in STAGES:
        manifest = json.loads((checkpoints[stage] / "manifest.json").read_text())
        assert set(manifest["tensors"]) == set(KINDS)
        for kind in KINDS:
            straight = step_tensors(tmp_path / f"straight{stage}", kind, step=4)
            resumed = step_tensors(tmp_path / f"resumed{stage}", kind, step=4)
            assert_identical(resumed, straight, (stage, kind))
            assert largest_magnitude(straight) > 0
            plain = step_tensors(tmp_path / "straight0", kind, step=4)
            assert_all_close(straight, plain, bounds.TRAINED, (stage, kind))


def largest_magnitude(tensors: dict[str, Tensor]) -> float:
    return max(float(tensor.abs().max()) for tensor in tensors.values())


def test_momentum_has_half_of_adamws_planned_state(raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Momentum has half the state of AdamW."""
    monkeypatch.setitem(registry.OPTIMIZERS, "momentum", ENTRY)
    bytes_of_moments = {}
    for kind in ("adamw", "momentum"):
        config = configure(raw_config, "x", {"optimizer.kind": kind})
        plan = plan_memory(TrainingLayout.from_config(config, 2), on_gpu=False)
        bytes_of_moments[kind] = plan.device[MemoryPart.MOMENTS]

    assert bytes_of_moments["momentum"] > 0
    assert bytes_of_moments["momentum"] == bytes_of_moments["adamw"] / 2
