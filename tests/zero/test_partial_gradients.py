"""Gradients of replicated weights are summed over tensor-parallel ranks without rounding to bfloat16."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_grad

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.inputs import on_device
from megatape.training.startup.build_trainer import build_trainer
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data

STAGES: list[dict[str, Any]] = [
    {"stage": 1},
    {"stage": 2},
    {"stage": 2, "offload_optimizer": True},
    {"stage": 3},
    {"stage": 3, "offload_optimizer": True},
]


def compare_sums(raw: dict[str, Any], topology: Topology) -> list[tuple[int, list[str]]]:
    """Return, for each of STAGES, the number of replicated weights and the names of weights with a wrong gradient.

    The expected gradient is the float32 sum over micro-batches, then over ranks, of the bfloat16 gradients of each backward
    pass. A sum of two numbers does not depend on their order, so it is exact.
    """
    found = []
    for number, zero in enumerate(STAGES):
        changes = {"zero": zero, "run": {"directory": f"{raw['run']['directory']}/{number}"}}
        config = parse_config(raw | changes, "test")
        run = build_trainer(config, open_run_data(config), topology, Lease(RunFolder(Path(config.run.directory)).lease))
        replicated = {
            name: parameter
            for name, parameter in run.engine.state.parameters.items()
            if "tensor" in run.engine.state.shared_axes(name)
        }
        parts: dict[str, torch.Tensor] = {}

        def add(name: str, gradient: torch.Tensor, parts: dict[str, torch.Tensor] = parts) -> None:
            assert gradient.dtype == torch.bfloat16
            parts[name] = parts.get(name, torch.zeros(gradient.shape)) + gradient.float()

        for name, parameter in replicated.items():
            parameter.register_hook(lambda gradient, name=name: add(name, gradient))
        batches = run.loader.step(0)
        run.engine.forward_backward([on_device(batch, run.engine.device) for batch in batches], 100.0)
        different = []
        for name, part in parts.items():
            dist.all_reduce(part)
            if not torch.equal(safe_get_full_grad(replicated[name]).view_as(part), part):
                different.append(name)
        found.append((len(parts), different))
    return found


def test_sums_are_float32(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["parallel"] = {"tp": 2}
    raw_config["training"] |= {"micro_batch_size": 4, "precision": "bfloat16"}
    for results in run_workers("tests.zero.test_partial_gradients:compare_sums", 2, raw_config, tmp_path / "workers"):
        for zero, (count, different) in zip(STAGES, results, strict=True):
            assert count > 5, zero
            assert different == [], zero
