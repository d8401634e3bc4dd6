"""An optimizer that works on whole matrices, and a schedule with a parameter, each in one file and one registry line."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from megatape import registry
from megatape.accounting.checkpoint_size import checkpoint_bytes
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory import plan_memory
from megatape.accounting.memory_parts import MemoryPart
from megatape.checkpoint.reader import verified_checkpoint
from megatape.config import OptimizerConfig, parse_config
from megatape.distributed.topology import Topology
from megatape.model.transformer import Transformer
from megatape.nn import parameters
from megatape.optim.optimizer import Group
from megatape.optim.schedules import learning_rate
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.own_optimizer import SPECTRAL, STAIRS
from tests.helpers.planner.plan_cases import configure
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import train_cases

HIGHEST = 0.9  # the bound of norms, whose weights start at 1
# Name of a run -> ranks, tensor-parallel ranks, stage.
RUNS = {"plain": (1, 1, 0)} | {f"stage {stage}, T {t}": (2 * t, t, stage) for t in (1, 2) for stage in range(4)}


def train_spectral(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    declare = parameters.ParameterSpec

    def bounded(shape: tuple[int, ...], init: Any, decay: bool, lr_scale: float, role: Any, _: Any) -> Any:
        return declare(shape, init, decay, lr_scale, role, (0.0, HIGHEST) if init == 1.0 else None)

    with (
        patch.dict(registry.OPTIMIZERS, {"spectral": SPECTRAL}),
        patch.dict(registry.SCHEDULES, {"stairs": STAIRS}),
        patch.object(parameters, "ParameterSpec", bounded),
    ):
        return train_cases(payload, topology)


@pytest.mark.slow
def test_whole_matrices_at_every_stage_and_topology(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Weights and states of any shape equal those of one process after three steps, and after a resume on other ranks."""
    raw_config["run"]["directory"] = str(tmp_path)
    raw_config["training"] |= {"steps": 3, "micro_batch_size": 1}
    raw_config["optimizer"] = {"kind": "spectral", "learning_rate": 0.01, "momentum": 0.5}
    raw_config["schedule"] = {"kind": "stairs", "stairs": 3, "warmup_fraction": 0.0}
    raw_config["checkpoint"] = {"interval": 2, "keep": 5}
    resumed = {"resume": str(tmp_path / "plain" / "checkpoints" / "step-00000002")}
    for name in RUNS:
        ranks, tensor, stage = RUNS[name]
        cases = [{"name": name, "set": {"zero.stage": stage, "parallel.tp": tensor}}]
        cases += [cases[0] | resumed | {"name": f"{name} resumed"}]
        found = run_workers(
            "tests.end_to_end.test_own_optimizer:train_spectral",
            ranks,
            {"config": raw_config, "cases": cases},
            tmp_path / name / "workers",
        )
        assert not any("error" in result for result in found[0]), found[0]
    expected = _tensors(tmp_path / "plain")
    assert expected["norms blocks.0.attention.query.weight"].shape == (32,)
    assert float(expected["count blocks.0.mlp.down.weight"]) == 3
    assert "momentum embedding.weight" not in expected and "average embedding.weight" in expected
    norms = [tensor for name, tensor in expected.items() if name.startswith("weight") and name.endswith("norm.weight")]
    assert norms and all(float(norm.max()) == pytest.approx(HIGHEST) for norm in norms)
    for name in [*RUNS][1:]:
        for run in (name, f"{name} resumed"):
            tensors = _tensors(tmp_path / run)
            assert tensors.keys() == expected.keys()
            for key, plain in expected.items():
                assert_close(tensors[key], plain, bounds.TRAINED, floor=1e-3, what=(run, key))


def forgetful(groups: list[Group], options: OptimizerConfig) -> torch.optim.Optimizer:
    """SGD with a momentum, the name of which torch chooses."""
    return torch.optim.SGD(groups, momentum=0.8)


def train_forgetful(payload: dict[str, Any], topology: Topology) -> list[str]:
    """What the first step says of entries that name nothing, something else, and the momentum."""
    found = []
    for number, state in enumerate(((), ("momentum",), ("momentum_buffer",))):
        entry = registry.OptimizerEntry(f"{__name__}:forgetful", "momentum", "megatape.config:OptimizerConfig", state=state)
        with patch.dict(registry.OPTIMIZERS, {"forgetful": entry}):
            found += train_cases(payload | {"cases": [{"name": f"{number}"}]}, topology)
    return [result.get("error", "") for result in found]


def test_state_that_checkpoints_would_not_have(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["optimizer"] = {"kind": "forgetful", "learning_rate": 0.01}
    raw_config["training"]["steps"] = 1
    (errors,) = run_workers(f"{__name__}:train_forgetful", 1, {"config": raw_config}, tmp_path / "workers")
    assert all("optimizer forgetful keeps momentum_buffer, which checkpoints would not have" in error for error in errors[:2])
    assert errors[2] == ""


def test_options_are_strict_and_planned(raw_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.OPTIMIZERS, "spectral", SPECTRAL)
    monkeypatch.setitem(registry.SCHEDULES, "stairs", STAIRS)
    raw = raw_config | {"optimizer": {"kind": "spectral", "learning_rate": 0.01, "beta1": 0.5}, "schedule": {"kind": "stairs"}}
    with pytest.raises(ValueError, match="optimizer.beta1: not a key of kind spectral, but of adamw and muon"):
        parse_config(raw, "test")
    raw["optimizer"] = {"kind": "adamw", "learning_rate": 0.01, "momentum": 0.5}
    with pytest.raises(ValueError, match="optimizer.momentum: not a key of kind adamw, but of muon and spectral"):
        parse_config(raw, "test")
    config = configure(raw_config, "x", {"optimizer.kind": "spectral", "optimizer.momentum": 0.5, "schedule.kind": "stairs"})
    assert parse_config(config.model_dump(), "saved") == config
    assert [learning_rate(step, 8, 1.0, config.schedule.model_copy(update={"warmup_fraction": 0.0})) for step in (0, 2, 7)] == [
        1.0,
        0.75,
        0.25,
    ]
    weights = {name: weight for name, weight in Transformer(config.model).named_parameters()}
    matrices = [w for w in weights.values() if parameters.spec_of(w).role == "matrix"]
    others = [w for w in weights.values() if parameters.spec_of(w).role != "matrix"]
    state = 4 * (sum(w.numel() + w.shape[0] + 1 for w in matrices) + sum(w.numel() for w in others))
    assert checkpoint_bytes(config.model, config.training, config.optimizer) == state + 4 * sum(
        w.numel() for w in weights.values()
    )
    assert plan_memory(TrainingLayout.from_config(config, 1), on_gpu=False).device[MemoryPart.MOMENTS] == state


def _tensors(run: Path) -> dict[str, Tensor]:
    checkpoint = verified_checkpoint(run / "checkpoints" / "step-00000003")
    kinds = checkpoint.manifest.tensors.items()
    return {f"{kind} {name}": checkpoint._file(kind, name).get_tensor(name) for kind, names in kinds for name in names}
