"""Ranks agree on attention backends and kernels working on all of them.

A checkpoint records the attention backend, and a resumed run reports another one.
"""

import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from torch import Tensor

from megatape.attention import rotating_backend
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.encodings.tape import Tape
from megatape.model import smoke_test
from megatape.nn import loss
from megatape.nn.loss import LossFormula
from megatape.registry import BACKENDS
from megatape.reliability.lease import hold
from megatape.run_folder import RunFolder
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.startup.engine import working_kernels
from tests.helpers.models.failing_kernels import (
    FRAGILE,
    ROTATION,
    BrokenUpdate,
    FragileRotation,
    fragile_rotation,
    loss_of,
    rotations_of,
    updates_of,
)
from tests.helpers.models.small_models import model_with
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data


def test_failing_update_kernel_is_not_used(
    raw_config: dict[str, Any], second_rank: Topology, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's results are compared, forward and backward. Without a kernel, nothing is tested."""
    pytest.importorskip("triton")
    config = parse_config(raw_config, "test")
    assert not updates_of(config, second_rank)
    assert not capsys.readouterr().out
    monkeypatch.setattr(working_kernels, "has_kernels", lambda device: True)
    monkeypatch.setattr(Tape, "update", lambda self, axis: BrokenUpdate(self.config, axis))
    assert not updates_of(config, second_rank)
    assert re.fullmatch(
        r"position update by PyTorch instead of our kernel: it failed when rank 1 tried it \(its results are off by \d+%\)\n",
        capsys.readouterr().out,
    )
    monkeypatch.setenv("RANK", "0")
    assert updates_of(config, second_rank)
    assert not capsys.readouterr().out
    for chosen in (True, False):
        model = model_with(config.model, update_by_kernel=chosen)
        assert [block.position.by_kernel for block in model.blocks] == [chosen] * config.model.num_layers


@pytest.mark.parametrize("encoding", ["tape", "rope"])
def test_failing_rotation_kernel_is_not_used(
    encoding: str,
    raw_config: dict[str, Any],
    second_rank: Topology,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel's results are compared, forward and backward. Encodings without a rotation have nothing to test."""
    raw_config["model"]["encoding"] = encoding
    config = parse_config(raw_config, "test")
    assert not rotations_of(config, second_rank)
    assert not capsys.readouterr().out
    for module in (working_kernels, smoke_test, rotating_backend):
        monkeypatch.setattr(module, "has_kernels", lambda device: True)
    monkeypatch.setitem(sys.modules, ROTATION, fragile_rotation())
    fallback = "rotation by PyTorch instead of our kernel: it failed when rank 1 tried it"
    assert not rotations_of(config, second_rank)
    assert capsys.readouterr().out == f"{fallback} (RuntimeError: out of resource: shared memory, required 247000)\n"
    monkeypatch.setenv("RANK", "0")
    assert rotations_of(config, second_rank)
    assert not capsys.readouterr().out
    monkeypatch.setattr(FragileRotation, "drops_gradient", True)
    assert rotations_of(config, second_rank) == (encoding == "rope"), "only TAPE has a gradient of e"
    raw_config["model"]["encoding"] = "alibi"
    assert rotations_of(parse_config(raw_config, "test"), second_rank)
    capsys.readouterr()


@pytest.mark.parametrize("fault", ["wrong", "broken", "none"])
def test_failing_loss_kernel_is_not_used(
    fault: str,
    raw_config: dict[str, Any],
    second_rank: Topology,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel is compared with PyTorch's operators, with the run's z-loss and soft-cap. Without one, nothing is tested."""
    raw_config["model"]["logit_softcap"] = 5.0
    raw_config["training"]["z_loss"] = 0.01
    config = parse_config(raw_config, "test")
    assert not loss_of(config, second_rank)
    assert not capsys.readouterr().out

    def chunk(states: Tensor, weight: Tensor, targets: Tensor, formula: LossFormula, differentiate: bool) -> Any:
        if fault == "broken":
            raise RuntimeError("no C compiler")
        formula = formula._replace(softcap=None) if fault == "wrong" else formula
        return operators(states, weight, targets, formula, differentiate)

    operators = loss._losses_by_torch
    monkeypatch.setattr(loss, "_losses_by_kernel", chunk)
    for module in (loss, smoke_test, working_kernels):
        monkeypatch.setattr(module, "has_kernels", lambda device: True)
    assert loss_of(config, second_rank) == (fault == "none")
    reason = {"wrong": r"its results are off by \d+%", "broken": "RuntimeError: no C compiler"}.get(fault)
    expected = rf"loss by PyTorch instead of our kernel: it failed when rank 1 tried it \({reason}\)\n" if reason else ""
    assert re.fullmatch(expected, capsys.readouterr().out)


def test_all_ranks_use_the_same_backends(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A backend, and each kernel, fails on one of two ranks."""
    raw_config["model"]["encoding"] = "rope"
    workers = tmp_path / "workers"
    results = run_workers(f"{__name__}:start_twice", 2, raw_config, workers)
    assert results == [["sdpa", "blocked", False, False, False]] * 2
    told = [(workers / f"rank{rank}.log").read_text() for rank in (0, 1)]
    assert told[0].count("attention by sdpa instead of fragile: it failed when rank 1 tried it (RuntimeError: out of") == 1
    assert told[0].count("changed since then: attention by sdpa -> blocked") == 1
    failed = "instead of our kernel: it failed when rank 1 tried it"
    assert told[0].count(f"position update by PyTorch {failed} (its results are") == 1
    assert told[0].count(f"rotation by PyTorch {failed} (RuntimeError: out of") == 1
    assert told[0].count(f"loss by PyTorch {failed} (the package triton is not installed)") == 1
    assert not any(word in told[1] for word in ("attention", "update", "rotation", "loss"))
    checkpoints = RunFolder(Path(raw_config["run"]["directory"])).checkpoints
    assert CheckpointReader(checkpoints / "step-00000000").state.attention == "sdpa"


def start_twice(raw: dict[str, Any], topology: Topology) -> list[Any]:
    """Start a run, and resume it with another backend. Returns both, and whether kernels failing on rank 1 are used."""
    chosen: list[Any] = []
    for name, resume, backends in (("auto", None, FRAGILE | BACKENDS), ("blocked", "auto", BACKENDS.copy())):
        raw["training"]["attention"] = name
        config = parse_config(raw, "test")
        with (
            patch.dict(BACKENDS, backends, clear=True),
            hold(RunFolder(Path(config.run.directory)).lease, topology) as lease,
        ):
            run = build_trainer(config, open_run_data(config), topology, lease, Start(resume))
            chosen.append(run.attention)
            if resume is None:
                run.checkpoints.ensure_saved()
    raw["model"]["encoding"] = "tape"
    config = parse_config(raw, "test")
    with (
        patch.object(working_kernels, "has_kernels", lambda device: True),
        patch.object(smoke_test, "has_kernels", lambda device: True),
        patch.object(rotating_backend, "has_kernels", lambda device: True),
        patch.object(Tape, "update", lambda self, axis: BrokenUpdate(self.config, axis)),
        patch.dict(sys.modules, {ROTATION: fragile_rotation()}),
    ):
        chosen += [updates_of(config, topology), rotations_of(config, topology)]
    with patch.object(working_kernels, "has_kernels", lambda device: topology.is_main):
        # Rank 1 lacks triton.
        chosen.append(loss_of(config, topology))
    return chosen
