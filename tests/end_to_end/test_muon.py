"""Muon computes what torch's does, clips the raw gradient, and its checkpoints move between layouts."""

from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import nn

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.run_folder import RunFolder
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, assert_within, relative_difference
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import assert_all_close, assert_identical, read_entries, step_tensors
from tests.helpers.runs.trainers import trainer_without_lease

KINDS = ("weight", "momentum_buffer", "exp_avg", "exp_avg_sq")
BATCH = 16
MODEL = {"model.num_kv_heads": 4, "model.qk_norm": True, "zero.sub_group_size": 3000}
FOUR_RANKS = MODEL | {"zero.stage": 3, "parallel.tp": 2}
OFFLOADED = FOUR_RANKS | {"zero.offload_optimizer": True, "zero.offload_parameters": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("muon")


@pytest.fixture
def config(raw_config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Configuration of runs of three steps, beside a plain one in `folder`."""
    raw_config["run"]["directory"] = str(folder)
    raw_config["training"] |= {"steps": 3, "global_batch_size": BATCH}
    # Dividing by the root of the second moment, AdamW turns rounding in a gradient near zero into a whole step.
    raw_config["optimizer"] |= {"kind": "muon", "eps": 1e-3}
    raw_config["checkpoint"] = {"interval": 2, "keep": 2}
    if not (folder / "plain").exists():
        plain = {"name": "plain", "set": MODEL | {"zero.stage": 0, "training.micro_batch_size": BATCH}}
        assert_no_errors(train(raw_config, [plain], 1))
    return raw_config


def train(config: dict[str, Any], cases: list[dict[str, Any]], num_ranks: int) -> list[dict[str, Any]]:
    logs = Path(config["run"]["directory"]) / "workers" / cases[0]["name"]
    return run_cases(config, cases, num_ranks, logs, timeout=900)


@pytest.mark.slow
def test_checkpoints_move(config: dict[str, Any], folder: Path) -> None:
    """Checkpoints move from one process to four and back, and bit for bit to the same layout. AdamW refuses them."""
    from_one = str(RunFolder(folder / "plain").checkpoint(2))
    *results, adamw = train(
        config,
        [
            {"name": "four", "set": FOUR_RANKS},
            {"name": "offloaded", "set": OFFLOADED},
            {"name": "moved", "set": FOUR_RANKS, "resume": from_one},
            {"name": "sequence", "set": FOUR_RANKS | {"parallel.sp": 2}},
            {"name": "adamw", "set": MODEL | {"optimizer.kind": "adamw"}, "resume": from_one},
        ],
        4,
    )
    assert_no_errors(results)
    assert "was trained with optimizer.kind muon, the configuration says adamw" in adamw["error"]
    from_four = str(RunFolder(folder / "four").checkpoint(2))
    assert_no_errors(train(config, [{"name": "again", "set": FOUR_RANKS, "resume": from_four}], 4))
    assert_no_errors(train(config, [{"name": "back", "set": MODEL | {"zero.stage": 1}, "resume": from_four}], 1))

    for name in ("four", "offloaded", "moved", "sequence", "back"):
        compare(folder / "plain", folder / name)
    for kind in KINDS:
        straight = step_tensors(folder / "four", kind, step=3)
        assert_identical(step_tensors(folder / "again", kind, step=3), straight, kind)


def compare(plain: Path, run: Path) -> None:
    """Hold the metrics of a run's steps, its weights and its states to those of a plain run."""
    expected_by_step = {entry["step"]: entry for entry in read_entries(plain / "metrics.jsonl")}
    for entry in read_entries(run / "metrics.jsonl"):
        expected = expected_by_step[entry["step"]]
        for field in ("loss", "grad_norm"):
            assert_close([entry[field]], [expected[field]], bounds.MUON_TRAINED, what=(run, entry["step"], field))
    for kind in KINDS:
        assert_all_close(step_tensors(run, kind, 3), step_tensors(plain, kind, 3), bounds.MUON_TRAINED, (run, kind))


def test_clips_the_raw_gradient(config: dict[str, Any], folder: Path) -> None:
    """Clipping scales the momentum, and leaves the first update as it is, which is orthogonal at any scale."""
    clip = 0.01
    assert_no_errors(
        train(
            config,
            [
                {"name": "free", "set": {"training.steps": 1, "training.gradient_clip": 0.0}},
                {"name": "clipped", "set": {"training.steps": 1, "training.gradient_clip": clip}},
            ],
            1,
        )
    )

    (metrics,) = read_entries(folder / "free" / "metrics.jsonl")
    matrices = step_tensors(folder / "free", "momentum_buffer", step=1).keys()
    for kind, scale in (("weight", 1.0), ("momentum_buffer", clip / metrics["grad_norm"])):
        free = step_tensors(folder / "free", kind, step=1)
        clipped = step_tensors(folder / "clipped", kind, step=1)
        for name in matrices:
            assert_close(clipped[name], scale * free[name], bounds.MUON_TRAINED, what=(kind, name))


class Difference(NamedTuple):
    """Relative difference of a weight after a step from the one by torch's optimizers."""

    step: int
    parameter: str
    value: float


@pytest.mark.numerics
def test_equals_torch(config: dict[str, Any], folder: Path) -> None:
    """Three steps of one process equal those of torch's optimizers with the same clipped gradients."""
    config |= {"run": {"directory": str(folder / "torch")}, "zero": {"stage": 0}}

    (rows,) = run_workers("tests.end_to_end.test_muon:train_beside_torch", 1, config, folder / "workers-torch")

    differences = [Difference(*row) for row in rows]
    queries = [difference for difference in differences if difference.parameter.endswith("query.weight")]
    assert len(queries) == 3 * 2  # steps, layers
    for difference in differences:
        assert_within(difference.value, bounds.MUON_STEP, (difference.step, difference.parameter))


def train_beside_torch(raw: dict[str, Any], topology: Topology) -> list[Difference]:
    """Compare all weights after each step. torch's Muon computes in float32 here, as ours does."""
    run = trainer_without_lease(parse_config(raw, "beside torch"), topology)
    weights = run.engine.state.parameters
    copies = {name: nn.Parameter(weight.detach().clone()) for name, weight in weights.items()}
    wrapper: Any = run.engine.state.optimizer
    optimizer = wrapper.inner
    torch_optimizers = [torch_optimizer(group, copies, raw["optimizer"]["eps"]) for group in optimizer.param_groups]

    def step_torch_optimizers(*_: object) -> None:
        for name, copy in copies.items():
            copy.grad = weights[name].grad.clone()
        for group, other in zip(optimizer.param_groups, torch_optimizers, strict=True):
            other.param_groups[0]["lr"] = group["lr"]
            other.step()

    optimizer.register_step_pre_hook(step_torch_optimizers)
    differences = []
    with patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
        for step in range(3):
            run.train_step()
            for name, copy in copies.items():
                value = relative_difference(weights[name], copy, floor=1e-3)
                differences.append(Difference(step, name, value))
    return differences


def torch_optimizer(group: dict[str, Any], copies: dict[str, nn.Parameter], eps: float) -> torch.optim.Optimizer:
    """Return torch's optimizer for the copies of a group's parameters."""
    params = [copies[name] for name in group["names"]]
    groups = [{"params": params, "weight_decay": group["weight_decay"]}]
    if group["whole"]:
        return torch.optim.Muon(groups, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    return torch.optim.AdamW(groups, eps=eps)
