"""An optimizer that works on whole matrices, and a schedule with a parameter, each in one file and one registry line."""

from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from megatape import registry
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.memory_parts import MemoryPart
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.accounting.whole_model.checkpoint_size import checkpoint_bytes
from megatape.config import Config, OptimizerConfig, parse_config
from megatape.distributed.topology import Topology
from megatape.model.transformer import Transformer
from megatape.nn import parameters
from megatape.optim.learning_rate import learning_rate
from megatape.optim.optimizer import Group
from megatape.run_folder import RunFolder
from tests.helpers.checks import bounds
from tests.helpers.models.own_optimizer import SPECTRAL, STAIRS
from tests.helpers.planner.plan_cases import configure
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import assert_all_close, verified_tensors
from tests.helpers.runs.training_cases import train_cases

MODULE = "tests.end_to_end.test_own_optimizer"
HIGHEST = 0.9  # Upper bound for the weights in norms, which start at 1


class Layout(NamedTuple):
    """Ranks and ZeRO stage of a run."""

    name: str
    num_ranks: int
    tensor: int
    stage: int


PLAIN = Layout("plain", num_ranks=1, tensor=1, stage=0)
LAYOUTS = [
    Layout(f"stage {stage}, T {tensor}", num_ranks=2 * tensor, tensor=tensor, stage=stage)
    for tensor in (1, 2)
    for stage in range(4)
]


def train_spectral(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    declare = parameters.ParameterSpec

    def bounded(
        shape: tuple[int, ...], init: Any, decay: bool, lr_scale: float, role: Any, _: Any, sharded_dim: int | None
    ) -> Any:
        bounds_of_weight = None
        if init == 1.0:
            bounds_of_weight = (0.0, HIGHEST)
        return declare(shape, init, decay, lr_scale, role, bounds_of_weight, sharded_dim)

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
    checkpoint = str(RunFolder(tmp_path / "plain").checkpoint(2))
    for layout in (PLAIN, *LAYOUTS):
        settings = {"zero.stage": layout.stage, "parallel.tp": layout.tensor}
        cases: list[dict[str, Any]] = [
            {"name": layout.name, "set": settings},
            {"name": f"{layout.name} resumed", "set": settings, "resume": checkpoint},
        ]
        logs = tmp_path / layout.name / "workers"
        assert_no_errors(run_cases(raw_config, cases, layout.num_ranks, logs, target=f"{MODULE}:train_spectral"))

    expected = verified_tensors(RunFolder(tmp_path / "plain").checkpoint(3))
    check_states(expected)
    for layout in LAYOUTS:
        for name in (layout.name, f"{layout.name} resumed"):
            tensors = verified_tensors(RunFolder(tmp_path / name).checkpoint(3))
            assert_all_close(tensors, expected, bounds.TRAINED, name, floor=1e-3)


def check_states(tensors: dict[str, Tensor]) -> None:
    """Check the states of matrices and of other weights, and that norms are within their bounds."""
    assert tensors["norms blocks.0.attention.query.weight"].shape == (32,)
    assert float(tensors["count blocks.0.mlp.down.weight"]) == 3
    assert "momentum embedding.weight" not in tensors
    assert "average embedding.weight" in tensors
    norms = [name for name in tensors if name.startswith("weight") and name.endswith("norm.weight")]
    assert norms
    for name in norms:
        assert float(tensors[name].max()) == pytest.approx(HIGHEST), name


def forgetful(groups: list[Group], options: OptimizerConfig) -> torch.optim.Optimizer:
    """SGD with a momentum, whose name in the state is torch's choice."""
    return torch.optim.SGD(groups, momentum=0.8)


def train_forgetful(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    """Train with registry entries that name no state, another state, and the momentum."""
    results = []
    for number, state in enumerate(((), ("momentum",), ("momentum_buffer",))):
        entry = registry.OptimizerEntry(f"{MODULE}:forgetful", "momentum", "megatape.config:OptimizerConfig", state=state)
        with patch.dict(registry.OPTIMIZERS, {"forgetful": entry}):
            results += train_cases(payload | {"cases": [{"name": f"{number}"}]}, topology)
    return results


def test_state_that_checkpoints_would_lack_is_refused(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["optimizer"] = {"kind": "forgetful", "learning_rate": 0.01}
    raw_config["training"]["steps"] = 1

    (results,) = run_workers(f"{MODULE}:train_forgetful", 1, {"config": raw_config}, tmp_path / "workers")

    no_state, other_state, momentum = results
    expected = "optimizer forgetful keeps momentum_buffer, which checkpoints would not have"
    assert expected in no_state["error"]
    assert expected in other_state["error"]
    assert "error" not in momentum


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the optimizer and the schedule."""
    monkeypatch.setitem(registry.OPTIMIZERS, "spectral", SPECTRAL)
    monkeypatch.setitem(registry.SCHEDULES, "stairs", STAIRS)


@pytest.mark.usefixtures("registered")
def test_options_of_other_optimizers_are_refused(raw_config: dict[str, Any]) -> None:
    raw_config["schedule"] = {"kind": "stairs"}
    raw_config["optimizer"] = {"kind": "spectral", "learning_rate": 0.01, "beta1": 0.5}
    with pytest.raises(ValueError, match="optimizer.beta1: not a key of kind spectral, but of adamw and muon"):
        parse_config(raw_config, "test")

    raw_config["optimizer"] = {"kind": "adamw", "learning_rate": 0.01, "momentum": 0.5}
    with pytest.raises(ValueError, match="optimizer.momentum: not a key of kind adamw, but of muon and spectral"):
        parse_config(raw_config, "test")


@pytest.fixture
def spectral(raw_config: dict[str, Any], registered: None) -> Config:
    settings = {"optimizer.kind": "spectral", "optimizer.momentum": 0.5, "schedule.kind": "stairs"}
    return configure(raw_config, "x", settings)


def test_a_saved_configuration_has_the_options(spectral: Config) -> None:
    assert parse_config(spectral.model_dump(), "saved") == spectral


def test_the_schedule_has_its_option(spectral: Config) -> None:
    schedule = spectral.schedule.model_copy(update={"warmup_fraction": 0.0})
    rates = [learning_rate(step, 8, 1.0, schedule) for step in (0, 2, 7)]
    assert rates == [1.0, 0.75, 0.25]


def test_states_of_whole_matrices_are_planned(spectral: Config) -> None:
    """The planner counts the state in memory and in checkpoints."""
    num_weights = 0
    num_states = 0
    for weight in Transformer(spectral.model).parameters():
        num_weights += weight.numel()
        num_states += weight.numel()
        if parameters.spec_of(weight).role == "matrix":
            num_states += weight.shape[0] + 1  # Row norms, and a count

    planned = checkpoint_bytes(spectral.model, spectral.training, spectral.optimizer)
    assert planned == 4 * (num_weights + num_states)
    plan = plan_memory(TrainingLayout.from_config(spectral, 1), on_gpu=False)
    assert plan.device[MemoryPart.MOMENTS] == 4 * num_states
