"""Ranks agree on attention backends and kernels that work on all of them, and on FP8.

A checkpoint records the attention backend, and a resumed run reports another one.
"""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from megatape.attention import fused_rotation
from megatape.attention.attend import Backends
from megatape.attention.backends.blocked import Blocked
from megatape.attention.fused_rotation import rotated_heads
from megatape.attention.rotation import PositionState
from megatape.checkpoint.reader import CheckpointReader
from megatape.config import Config, parse_config
from megatape.distributed.topology import Topology
from megatape.encodings.tape import Tape, TapeUpdate
from megatape.errors import UserError
from megatape.model import smoke_test
from megatape.model.requirements import attention_requirements
from megatape.nn import loss
from megatape.nn.loss import LossFormula
from megatape.registry import BACKENDS, Entry
from megatape.reliability.lease import hold
from megatape.run_folder import RunFolder, read_steps
from megatape.training.start import Start
from megatape.training.startup import working_kernels
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.startup.working_kernels import KernelTests, working_product
from tests.helpers.checks import bounds
from tests.helpers.models.small_models import model_with
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.training_cases import TRAIN_CASES

CPU = torch.device("cpu")
ROTATION = "megatape.attention.kernels.rotation"
FRAGILE = {"fragile": Entry(f"{__name__}:Fragile", "fails on rank 1")}


class Fragile(Blocked):
    def attend(self, *arguments: Any) -> tuple[Tensor, Tensor | None]:
        if os.environ["RANK"] == "1":
            raise RuntimeError("out of resource: shared memory, required 247000")
        return super().attend(*arguments)


class BrokenUpdate(TapeUpdate):
    """Position update with a broken kernel on rank 1: it forgets the gain of attention's update, and so its gradient."""

    def has_kernel(self, device: torch.device) -> bool:
        return True

    def _update_by_kernel(self, initial: Tensor, delta: Tensor | None, attended_state: Tensor | None, m: Tensor) -> Tensor:
        if os.environ["RANK"] == "1" and attended_state is not None:
            attended_state = attended_state / self.gain[:, None]
        return self._update(initial, delta, attended_state, m)


class FragileRotation:
    """Rotation kernel that a driver cannot run on rank 1, and that computes no gradient of e on rank 0 if told so."""

    drops_gradient = False

    @classmethod
    def apply(
        cls, q: Tensor, k: Tensor, initial: Tensor, delta: Tensor | None, moves_state: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        if os.environ["RANK"] == "1":
            raise RuntimeError("out of resource: shared memory, required 247000")
        if cls.drops_gradient and delta is not None:
            delta = delta.detach() + 0 * delta
        return rotated_heads(q, k, PositionState(initial, delta), moves_state, by_kernel=False)


def fragile_rotation() -> ModuleType:
    """Return a stand-in for the module of the rotation kernel, which needs triton."""
    module = ModuleType(ROTATION)
    module.Rotation = FragileRotation  # type: ignore[attr-defined]
    return module


def kernel_tests(config: Config, topology: Topology, device: torch.device = CPU) -> KernelTests:
    """Return the tests of a run's kernels."""
    dtype = getattr(torch, config.training.precision)
    return KernelTests(config.model, dtype, config.data.sequence_length, device, topology)


def backends_of(config: Config, device: torch.device, topology: Topology) -> Backends:
    """Return the working backends of a run."""
    requirements = attention_requirements(config, device.type)
    kernels = kernel_tests(config, topology, device)
    return kernels.working_backends(requirements, config.training.attention, rotation_by_kernel=False)


def updates_of(config: Config, topology: Topology) -> bool:
    """Whether a run updates the position state by kernels."""
    return kernel_tests(config, topology).updates_by_kernel(config.parallel.tp)


def rotations_of(config: Config, topology: Topology) -> bool:
    """Whether kernels rotate queries and keys in a run."""
    return kernel_tests(config, topology).rotates_by_kernel()


def loss_of(config: Config, topology: Topology) -> bool:
    """Whether a run computes its loss by a kernel."""
    return kernel_tests(config, topology).computes_loss_by_kernel(config.training.z_loss)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Topology:
    """Simulate rank 1 of a run of two, whose other rank finds no fault."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(working_kernels.LOG, "info", lambda text, *values: print(text % values))
    monkeypatch.setattr(working_kernels, "gather_values", lambda fault, topology: [None, fault])
    return Topology(rank=0, world_size=2, local_rank=0)


def test_next_backend_replaces_a_failing_one(
    raw_config: dict[str, Any], alone: Topology, capsys: pytest.CaptureFixture[str]
) -> None:
    """The preferred backend fails, so the next one runs its layers, and all others."""
    for encoding, expected in {"tape": ("sdpa",), "rope": ("sdpa",), "fire": ("blocked",)}.items():
        raw_config["model"]["encoding"] = encoding
        with patch.dict(BACKENDS, FRAGILE | BACKENDS, clear=True):
            assert backends_of(parse_config(raw_config, "test"), CPU, alone) == expected
        told = (
            f"attention by {expected[-1]} instead of fragile: it failed when rank 1 tried it (RuntimeError: out of resource: "
            "shared memory, required 247000)\n"
        )
        assert capsys.readouterr().out == told


def test_forced_backend_is_not_replaced(raw_config: dict[str, Any], alone: Topology) -> None:
    raw_config["model"]["encoding"] = "rope"
    with patch.dict(BACKENDS, FRAGILE | BACKENDS, clear=True):
        raw_config["training"]["attention"] = "fragile"
        config = parse_config(raw_config, "test")
        with pytest.raises(ValueError, match="attention is fragile, but it failed when rank 1 .*: choose auto, or one of sdpa"):
            backends_of(config, CPU, alone)
    raw_config["training"]["attention"] = "flex"
    with pytest.raises(ValueError, match="attention is flex, which is compiled for GPUs"):
        backends_of(parse_config(raw_config, "test"), CPU, alone)


def test_backends_that_may_crash_are_tested_in_a_child(
    raw_config: dict[str, Any], alone: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens on a GPU, on the first rank of a node: after a crash, the process itself could no longer use CUDA."""
    tried = []

    def failure(name: str, *arguments: Any) -> str:
        tried.append(name)
        return "its process ended with status -6"

    def here(name: str, *arguments: Any) -> None:
        tried.append(f"{name} here")

    raw_config["model"] |= {"encoding": "rope", "hidden_size": 16 * raw_config["model"]["num_heads"]}
    raw_config["training"]["attention"] = "flex"
    config = parse_config(raw_config, "test")
    monkeypatch.setattr(working_kernels, "smoke_test_in_child", failure)
    monkeypatch.setattr(working_kernels, "smoke_test_backend", here)
    with pytest.raises(
        UserError, match=r"attention is flex, but it failed when rank 1 tried it \(its process ended with status"
    ):
        backends_of(config, torch.device("cuda"), alone)
    assert tried == ["flex", "sdpa here"]
    tried.clear()
    assert backends_of(config, torch.device("cuda"), replace(alone, local_rank=1)) == ("flex",)
    assert tried == ["flex here"], "the first rank of the node found no fault"
    tried.clear()
    raw_config["model"]["encoding"] = "tape"
    raw_config["training"] |= {"attention": "auto", "precision": "bfloat16"}
    assert backends_of(parse_config(raw_config, "test"), torch.device("cuda"), alone) == ("sdpa",)
    assert tried == ["triton", "sdpa here"], "our own kernels, too, where they go first"


def test_no_backend_works(raw_config: dict[str, Any], alone: Topology) -> None:
    with patch.dict(BACKENDS, FRAGILE, clear=True):
        raw_config["model"]["encoding"] = "rope"
        config = parse_config(raw_config, "test")
        with pytest.raises(ValueError, match=r"no attention backend works here: fragile: it failed when rank 1 tried it \(Run"):
            backends_of(config, CPU, alone)


def test_failing_update_kernel_is_not_used(
    raw_config: dict[str, Any], alone: Topology, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's results are compared, forward and backward. Without a kernel, nothing is tested."""
    pytest.importorskip("triton")
    config = parse_config(raw_config, "test")
    assert not updates_of(config, alone)
    assert not capsys.readouterr().out
    monkeypatch.setattr(working_kernels, "has_kernels", lambda device: True)
    monkeypatch.setattr(Tape, "update", lambda self, axis: BrokenUpdate(self.config, axis))
    assert not updates_of(config, alone)
    assert re.fullmatch(
        r"position update by PyTorch instead of our kernel: it failed when rank 1 tried it \(its results are off by \d+%\)\n",
        capsys.readouterr().out,
    )
    monkeypatch.setenv("RANK", "0")
    assert updates_of(config, alone)
    assert not capsys.readouterr().out
    for chosen in (True, False):
        model = model_with(config.model, update_by_kernel=chosen)
        assert [block.position.by_kernel for block in model.blocks] == [chosen] * config.model.num_layers


@pytest.mark.parametrize("encoding", ["tape", "rope"])
def test_failing_rotation_kernel_is_not_used(
    encoding: str,
    raw_config: dict[str, Any],
    alone: Topology,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel's results are compared, forward and backward. Encodings without a rotation have nothing to test."""
    raw_config["model"]["encoding"] = encoding
    config = parse_config(raw_config, "test")
    assert not rotations_of(config, alone)
    assert not capsys.readouterr().out
    for module in (working_kernels, smoke_test, fused_rotation):
        monkeypatch.setattr(module, "has_kernels", lambda device: True)
    monkeypatch.setitem(sys.modules, ROTATION, fragile_rotation())
    fallback = "rotation by PyTorch instead of our kernel: it failed when rank 1 tried it"
    assert not rotations_of(config, alone)
    assert capsys.readouterr().out == f"{fallback} (RuntimeError: out of resource: shared memory, required 247000)\n"
    monkeypatch.setenv("RANK", "0")
    assert rotations_of(config, alone)
    assert not capsys.readouterr().out
    monkeypatch.setattr(FragileRotation, "drops_gradient", True)
    assert rotations_of(config, alone) == (encoding == "rope"), "only TAPE has a gradient of e"
    raw_config["model"]["encoding"] = "alibi"
    assert rotations_of(parse_config(raw_config, "test"), alone)
    capsys.readouterr()


def test_backends_are_tested_with_the_chosen_rotation(
    raw_config: dict[str, Any], alone: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smoke test and the model must use the same rotation."""
    monkeypatch.setattr(fused_rotation, "has_kernels", lambda device: True)
    monkeypatch.setitem(sys.modules, ROTATION, fragile_rotation())
    raw_config["model"]["encoding"] = "rope"
    config = parse_config(raw_config, "test")
    requirements = attention_requirements(config, "cpu")
    kernels = kernel_tests(config, alone)
    chosen = [kernels.working_backends(requirements, "auto", rotation_by_kernel) for rotation_by_kernel in (True, False)]
    assert chosen == [("blocked",), ("sdpa",)]
    inputs = torch.zeros(1, 8, dtype=torch.long), torch.arange(8)[None]
    with pytest.raises(RuntimeError, match="out of resource"):
        model_with(config.model, rotation_by_kernel=True)(*inputs)
    model_with(config.model)(*inputs)


@pytest.mark.parametrize("fault", ["wrong", "broken", "none"])
def test_failing_loss_kernel_is_not_used(
    fault: str, raw_config: dict[str, Any], alone: Topology, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is compared with PyTorch's operators, with the run's z-loss and soft-cap. Without one, nothing is tested."""
    raw_config["model"]["logit_softcap"] = 5.0
    raw_config["training"]["z_loss"] = 0.01
    config = parse_config(raw_config, "test")
    assert not loss_of(config, alone)
    assert not capsys.readouterr().out

    def chunk(states: Tensor, weight: Tensor, targets: Tensor, formula: LossFormula, differentiate: bool) -> Any:
        if fault == "broken":
            raise RuntimeError("no C compiler")
        formula = formula._replace(softcap=None) if fault == "wrong" else formula
        return operators(states, weight, targets, formula, differentiate)

    operators = loss._chunk
    monkeypatch.setattr(loss, "_chunk_by_kernel", chunk)
    for module in (loss, smoke_test, working_kernels):
        monkeypatch.setattr(module, "has_kernels", lambda device: True)
    assert loss_of(config, alone) == (fault == "none")
    reason = {"wrong": r"its results are off by \d+%", "broken": "RuntimeError: no C compiler"}.get(fault)
    expected = rf"loss by PyTorch instead of our kernel: it failed when rank 1 tried it \({reason}\)\n" if reason else ""
    assert re.fullmatch(expected, capsys.readouterr().out)


def test_all_ranks_use_the_same_backends(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A backend fails on one of two ranks."""
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
    """Return the backends of a run and of its resumption with another one, and whether kernels that fail on rank 1 are used."""
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
        patch.object(fused_rotation, "has_kernels", lambda device: True),
        patch.object(Tape, "update", lambda self, axis: BrokenUpdate(self.config, axis)),
        patch.dict(sys.modules, {ROTATION: fragile_rotation()}),
    ):
        chosen += [updates_of(config, topology), rotations_of(config, topology)]
    with patch.object(working_kernels, "has_kernels", lambda device: topology.is_main):
        # Rank 1 lacks triton.
        chosen.append(loss_of(config, topology))
    return chosen


@pytest.fixture
def fp8_config(raw_config: dict[str, Any]) -> dict[str, Any]:
    raw_config["model"]["mlp_size"] = 48
    raw_config["training"] |= {"precision": "bfloat16", "fp8": "tensorwise"}
    raw_config["zero"] = {"stage": 2}
    return raw_config


@pytest.mark.fp8
@pytest.mark.slow
def test_fp8_learns_like_bfloat16(fp8_config: dict[str, Any], tmp_path: Path) -> None:
    fp8_config["training"] |= {"steps": 12, "activation_checkpointing": "selective"}
    fp8_config["optimizer"]["learning_rate"] = 5e-3
    cases = [{"name": recipe, "set": {"training.fp8": recipe}} for recipe in ("none", "tensorwise")]
    (started,) = run_workers(TRAIN_CASES, 1, {"config": fp8_config, "cases": cases}, tmp_path / "workers")
    assert not any("error" in case for case in started), started
    without, ours = (list(read_steps(RunFolder(tmp_path / "run" / str(case["name"])).metrics)) for case in cases)
    losses, expected = ([entry["loss"] for entry in run] for run in (ours, without))
    bounds.assert_close(losses, expected, bounds.FP8_LOSSES)
    bounds.assert_close([ours[0]["grad_norm"]], [without[0]["grad_norm"]], bounds.FP8_NORM)
    assert losses != expected
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize(
    ("section", "values", "told"),
    [
        (
            "training",
            {"precision": "float32"},
            "training.fp8 tensorwise does not support training.precision float32: choose bfloat16",
        ),
        ("zero", {"stage": 3}, "training.fp8 tensorwise does not support zero.stage 3, which frees the weights"),
        ("parallel", {"tp": 2}, "training.fp8 tensorwise does not support parallel.tp 2, whose ranks"),
        ("training", {"trainable": ["norms"]}, "training.fp8 tensorwise does not support frozen weights"),
        ("training", {"frozen": ["*.position.gain"]}, "training.fp8 tensorwise does not support frozen weights"),
        (
            "model",
            {"lora": {"rank": 2, "alpha": 2.0, "targets": ["query"]}},
            "fp8 tensorwise does not support model.lora",
        ),
        ("model", {"hidden_size": 40, "head_dim": 4}, "model.hidden_size 40 is not a multiple of 16, which FP8 products need"),
        ("model", {"num_kv_heads": 2}, "model.num_kv_heads x model.head_dim 8 is not a multiple of 16"),
        ("model", {"mlp_size": 40}, "model.mlp_size 40 is not a multiple of 16"),
        ("data", {"length_warmup": [{"tokens": 9, "length": 2}]}, "tokens of a micro-batch, 8 is not a multiple of 16"),
    ],
    ids=str,
)
def test_refused_settings(fp8_config: dict[str, Any], section: str, values: dict[str, Any], told: str) -> None:
    if "lora" in values:
        fp8_config["training"]["trainable"] = ["adapters"]
    fp8_config[section] = fp8_config.get(section, {}) | values
    with pytest.raises(ValueError, match=told):
        parse_config(fp8_config, "test")


@pytest.mark.fp8
def test_fp8_works_on_all_ranks_or_none(
    fp8_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank without torchao ends the run on all ranks. A CPU logs that it emulates FP8."""
    config = parse_config(fp8_config, "test")
    topology = Topology(rank=0, world_size=2, local_rank=0)
    for fault in (None, UserError("torchao cannot be imported")):
        monkeypatch.setattr(
            "megatape.distributed.values.exchange.gather_values", lambda mine, *_, fault=fault: [mine, [None, fault]]
        )
        if fault:
            with pytest.raises(ValueError, match="training.fp8 tensorwise does not work: rank 1: torchao cannot be imported"):
                working_product(config.training.fp8, torch.device("cpu"), topology)
        else:
            assert working_product(config.training.fp8, torch.device("cpu"), topology) is not None
            assert "training.fp8 tensorwise is emulated on a CPU" in capsys.readouterr().out
