"""Muon computes what torch's does, clips the raw gradient, and its checkpoints move between layouts."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.startup.build_trainer import build_trainer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, assert_within, relative_difference
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.run_folders import step_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

KINDS = ("weight", "momentum_buffer", "exp_avg", "exp_avg_sq")
BATCH = 16
MODEL = {"model.num_kv_heads": 4, "model.qk_norm": True, "zero.sub_group_size": 3000}
MANY = MODEL | {"zero.stage": 3, "parallel.tp": 2}  # on four ranks
OFFLOADED = MANY | {"zero.offload_optimizer": True, "zero.offload_parameters": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("muon")


@pytest.fixture
def config(raw_config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Of three steps; `folder` has a plain run."""
    raw_config["run"]["directory"] = str(folder)
    raw_config["training"] |= {"steps": 3, "global_batch_size": BATCH}
    # AdamW divides by the root of the second moment, and so turns the rounding of a gradient near zero into a whole step.
    raw_config["optimizer"] |= {"kind": "muon", "eps": 1e-3}
    raw_config["checkpoint"] = {"interval": 2, "keep": 2}
    if not (folder / "plain").exists():
        train(raw_config, [{"name": "plain", "set": MODEL | {"zero.stage": 0, "training.micro_batch_size": BATCH}}], 1)
    return raw_config


@pytest.mark.slow
def test_checkpoints_move(config: dict[str, Any], folder: Path) -> None:
    """Between one process and four, in both directions, and bit for bit to the same layout; AdamW refuses them by name."""
    resumed = {"resume": str(folder / "plain/checkpoints/step-00000002")}
    other = {"name": "other", "set": MODEL | {"optimizer.kind": "adamw"}}
    cases = [{"name": "many", "set": MANY}, {"name": "offloaded", "set": OFFLOADED}, {"name": "moved", "set": MANY} | resumed]
    cases += [{"name": "sequence", "set": MANY | {"parallel.sp": 2}}, other | resumed]
    *_, refused = train(config, cases, 4, failing=1)
    assert "was trained with optimizer.kind muon, the configuration says adamw" in refused["error"]
    resumed = {"resume": str(folder / "many/checkpoints/step-00000002")}
    train(config, [{"name": "again", "set": MANY} | resumed], 4)
    train(config, [{"name": "back", "set": MODEL | {"zero.stage": 1}} | resumed], 1)
    for name in ("many", "offloaded", "moved", "sequence", "back"):
        compare(folder / "plain", folder / name)
    for kind in KINDS:
        straight, again = (step_tensors(folder / name, kind, step=3) for name in ("many", "again"))
        assert straight and all(torch.equal(again[name], tensor) for name, tensor in straight.items()), kind


def test_clips_the_raw_gradient(config: dict[str, Any], folder: Path) -> None:
    """Clipping scales the momentum, and leaves the first update as it is, which is orthogonal at any scale."""
    cases = [{"name": f"clip{clip}", "set": {"training.steps": 1, "training.gradient_clip": clip}} for clip in (0.0, 0.01)]
    train(config, cases, 1)
    (norm,) = (json.loads(line)["grad_norm"] for line in (folder / "clip0.0" / "metrics.jsonl").open())
    for kind, scale in (("weight", 1.0), ("momentum_buffer", 0.01 / norm)):
        free, clipped = (step_tensors(folder / case["name"], kind, step=1) for case in cases)
        for name in step_tensors(folder / "clip0.0", "momentum_buffer", step=1):
            assert_close(clipped[name], scale * free[name], bounds.MUON_TRAINED, what=(kind, name))


@pytest.mark.numerics
def test_equals_torch(config: dict[str, Any], folder: Path) -> None:
    """Three steps of one process, beside torch's optimizers with the same gradients, after clipping."""
    config |= {"run": {"directory": str(folder / "torch")}, "zero": {"stage": 0}}
    (differences,) = run_workers("tests.end_to_end.test_muon:train_beside_torch", 1, config, folder / "workers-torch")
    assert sum(name.endswith("query.weight") for _, name, _ in differences) == 3 * 2  # steps, layers
    for step, name, difference in differences:
        assert_within(difference, bounds.MUON_STEP, (step, name))


def train_beside_torch(raw: dict[str, Any], topology: Topology) -> list[tuple[int, str, float]]:
    """Relative differences of all weights after each step. torch's Muon computes in float32 here, as ours does."""
    config = parse_config(raw, "beside torch")
    run = build_trainer(config, open_run_data(config), topology, Lease(RunFolder(Path(config.run.directory)).lease))
    weights = run.engine.state.parameters
    copies = {name: nn.Parameter(weight.detach().clone()) for name, weight in weights.items()}
    ours: Any = run.engine.state.optimizer
    ours = ours.inner
    theirs: list[torch.optim.Optimizer] = []
    for group in ours.param_groups:
        held = [{"params": [copies[name] for name in group["names"]], "weight_decay": group["weight_decay"]}]
        muon = torch.optim.Muon(held, momentum=0.95, adjust_lr_fn="match_rms_adamw") if group["whole"] else None
        theirs.append(muon or torch.optim.AdamW(held, eps=raw["optimizer"]["eps"]))

    def follow(*_: object) -> None:
        for name, copy in copies.items():
            copy.grad = weights[name].grad.clone()
        for group, optimizer in zip(ours.param_groups, theirs, strict=True):
            optimizer.param_groups[0]["lr"] = group["lr"]
            optimizer.step()

    ours.register_step_pre_hook(follow)
    differences = []
    with patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
        for step in range(3):
            run.train_step()
            differences += [(step, name, relative_difference(weights[name], copy, floor=1e-3)) for name, copy in copies.items()]
    return differences


def train(config: dict[str, Any], cases: list[dict[str, Any]], ranks: int, failing: int = 0) -> list[dict[str, Any]]:
    """The results of the cases, of which the last `failing` are errors."""
    place = Path(config["run"]["directory"]) / "workers" / cases[0]["name"]
    results = run_workers(TRAIN_CASES, ranks, {"config": config, "cases": cases}, place, 900)[0]
    assert [result.get("error") for result in results[: len(cases) - failing]] == [None] * (len(cases) - failing)
    return results


def compare(plain: Path, this: Path) -> None:
    """Hold a run to a plain one."""
    expected, found = (
        {line["step"]: line for line in map(json.loads, (run / "metrics.jsonl").open())} for run in (plain, this)
    )
    for step, line in found.items():
        for field in ("loss", "grad_norm"):
            assert_close([line[field]], [expected[step][field]], bounds.MUON_TRAINED, what=(this, step, field))
    for kind in KINDS:
        ours = step_tensors(this, kind, step=3)
        theirs = step_tensors(plain, kind, step=3)
        assert ours.keys() == theirs.keys() and (theirs or kind == "weight"), (this, kind)
        for name, tensor in theirs.items():
            assert_close(ours[name], tensor, bounds.MUON_TRAINED, floor=1e-12, what=(this, kind, name))
