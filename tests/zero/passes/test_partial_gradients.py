"""Gradients of replicated weights are summed over tensor-parallel ranks without rounding to bfloat16."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_grad

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.trainers import trainer_without_lease

ZERO_SECTIONS: list[dict[str, Any]] = [
    {"stage": 1},
    {"stage": 2},
    {"stage": 2, "offload_optimizer": True},
    {"stage": 3},
    {"stage": 3, "offload_optimizer": True},
]


class Comparison(NamedTuple):
    """Number of replicated weights, and the names of weights with a wrong gradient."""

    num_replicated: int
    different: list[str]


def compare_sums(raw: dict[str, Any], topology: Topology) -> list[Comparison]:
    """Compare gradients of replicated weights for each of ZERO_SECTIONS.

    The expected gradient is the float32 sum over micro-batches, then over ranks, of the bfloat16 gradients of each backward
    pass. A sum of two numbers does not depend on their order, so it is exact.
    """
    comparisons = []
    for number, zero in enumerate(ZERO_SECTIONS):
        changes = {"zero": zero, "run": {"directory": f"{raw['run']['directory']}/{number}"}}
        config = parse_config(raw | changes, "test")
        run = trainer_without_lease(config, topology)
        state = run.engine.state
        replicated = {}
        for name, parameter in state.parameters.items():
            if "tensor" in state.shared_axes(name):
                replicated[name] = parameter
        parts: dict[str, torch.Tensor] = {}

        def add(name: str, gradient: torch.Tensor, parts: dict[str, torch.Tensor] = parts) -> None:
            assert gradient.dtype == torch.bfloat16
            parts[name] = parts.get(name, torch.zeros(gradient.shape)) + gradient.float()

        for name, parameter in replicated.items():
            parameter.register_hook(lambda gradient, name=name: add(name, gradient))
        batches = run.loader.step(0)
        run.engine.forward_backward([batch.inputs_on(run.engine.device) for batch in batches], 100.0)
        different = []
        for name, part in parts.items():
            dist.all_reduce(part)
            gradient = safe_get_full_grad(replicated[name]).view_as(part)
            if not torch.equal(gradient, part):
                different.append(name)
        comparisons.append(Comparison(len(parts), different))
    return comparisons


def test_gradients_of_replicated_weights_are_summed_in_float32(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["parallel"] = {"tp": 2}
    raw_config["training"] |= {"micro_batch_size": 4, "precision": "bfloat16"}
    results = run_workers("tests.zero.passes.test_partial_gradients:compare_sums", 2, raw_config, tmp_path / "workers")
    for comparisons in results:
        for zero, (num_replicated, different) in zip(ZERO_SECTIONS, comparisons, strict=True):
            assert num_replicated > 5, zero
            assert different == [], zero
