"""Gradients summed on a single data-parallel rank are bit for bit those that DeepSpeed reduces over this rank."""

from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.training.trainer import Trainer
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.trainers import trainer_without_lease

NUM_STEPS = 3
REPLACED = ("process_gradients", "reduce_ipg_grads")


@pytest.mark.parametrize("tensor_ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sums_are_those_of_buckets(raw_config: dict[str, Any], tmp_path: Path, tensor_ranks: int) -> None:
    raw_config["training"] |= {"precision": "bfloat16", "micro_batch_size": 2, "steps": NUM_STEPS}
    raw_config["parallel"] = {"tp": tensor_ranks}
    results = run_workers("tests.zero.stages.test_local_gradients:compare", tensor_ranks, raw_config, tmp_path / "workers")
    assert results == [{"1": [True] * NUM_STEPS, "2": [True] * NUM_STEPS}] * tensor_ranks


def compare(raw: dict[str, Any], topology: Topology) -> dict[str, list[bool]]:
    """Return for each stage whether the weights after each step are those of a run with DeepSpeed's buckets."""
    results = {}
    for stage in (1, 2):
        raw["zero"] = {"stage": stage}
        directory = raw["run"]["directory"]
        runs = []
        for name in ("local", "buckets"):
            settings = raw | {"run": {"directory": f"{directory}/{stage} {name}"}}
            runs.append(trainer_without_lease(parse_config(settings, name), topology))
        local, buckets = runs
        for method in REPLACED:
            delattr(buckets.engine.deepspeed_engine.optimizer, method)
        results[str(stage)] = [_have_equal_steps(local, buckets) for _ in range(NUM_STEPS)]
    return results


def _have_equal_steps(run: Trainer, other: Trainer) -> bool:
    output = run.train_step()
    expected = other.train_step()
    if (output.loss, output.grad_norm) != (expected.loss, expected.grad_norm) or not output.is_applied:
        return False
    parameters = zip(run.engine.state.parameters.values(), other.engine.state.parameters.values(), strict=True)
    return all(parameter.equal(other_parameter) for parameter, other_parameter in parameters)


def test_several_ranks_reduce(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """With another data-parallel rank, and with offloading, DeepSpeed's methods stay."""
    raw_config["training"] |= {"precision": "bfloat16"}
    results = run_workers("tests.zero.stages.test_local_gradients:count_replaced", 2, raw_config, tmp_path / "workers")
    assert results == [[0, 0]] * 2


def count_replaced(raw: dict[str, Any], topology: Topology) -> list[int]:
    """Return the number of replaced methods with two data-parallel ranks, and with one that offloads."""
    counts = []
    directory = raw["run"]["directory"]
    for name, settings in {
        "two": {"zero": {"stage": 2}},
        "offloaded": {"zero": {"stage": 2, "offload_optimizer": True}, "parallel": {"tp": 2}},
    }.items():
        config = parse_config(raw | settings | {"run": {"directory": f"{directory}/{name}"}}, name)
        run = trainer_without_lease(config, topology)
        optimizer = run.engine.deepspeed_engine.optimizer
        counts.append(sum(method in vars(optimizer) for method in REPLACED))
    return counts
