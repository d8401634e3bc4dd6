"""Stages of ZeRO and their settings train the same model: bits, or the rounding of float32 sums."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import step_tensors
from tests.helpers.runs.training_cases import TRAIN_CASES


@pytest.fixture
def config(raw_config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    raw_config["run"]["directory"] = str(tmp_path)
    raw_config["training"] |= {"steps": 3, "micro_batch_size": 1, "global_batch_size": 4}
    raw_config["optimizer"]["eps"] = 1e-3  # so that rounding of a gradient near zero is no whole step
    return raw_config


def _train(config: dict[str, Any], cases: dict[str, dict[str, Any]], ranks: int, folder: Path) -> None:
    payload = {"config": config, "cases": [{"name": name, "set": changes} for name, changes in cases.items()]}
    results = run_workers(TRAIN_CASES, ranks, payload, folder / "workers", 300)
    assert [result.get("error") for result in results[0]] == [None] * len(cases)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_overlap_changes_no_bit(config: dict[str, Any], tmp_path: Path, precision: str) -> None:
    """Two micro-batches on each of two ranks, in buckets of one matrix or a few; and stage 1 equals stage 2."""
    shared = {"training.precision": precision, "zero.bucket_size": 5000}
    cases = {
        f"{stage}-{overlap}": shared | {"zero.stage": stage, "zero.overlap": overlap}
        for stage in (1, 2, 3)
        for overlap in (False, True)
    }
    _train(config, cases, 2, tmp_path)
    for stage in (1, 2, 3):
        for kind in ("weight", "exp_avg"):
            plain, overlapped = (step_tensors(tmp_path / f"{stage}-{overlap}", kind, step=3) for overlap in (False, True))
            assert all(torch.equal(tensor, overlapped[name]) for name, tensor in plain.items()), (stage, kind)
    # Stage 1 sums the micro-batches before the ranks. Float32 sums in another order differ by up to 7e-7 of the norm here,
    # and sums in bfloat16 by more than 1e-3.
    one, two = (step_tensors(tmp_path / f"{stage}-True", "exp_avg", step=3) for stage in (1, 2))
    for name, tensor in two.items():
        assert (one[name] - tensor).norm() <= 1e-5 * tensor.norm(), name


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_second_copy_changes_no_bit(config: dict[str, Any], tmp_path: Path, precision: str) -> None:
    """Four ranks in pairs that keep a copy, with buckets that release weights.

    In bfloat16 with an average of the weights, which is evaluated at each step, and with weights in host memory.
    """
    shared = {"training.precision": precision, "zero.stage": 3, "zero.bucket_size": 1000, "training.global_batch_size": 8}
    if precision == "bfloat16":
        shared |= {"optimizer.ema_decay": 0.5, "evaluation.interval": 1, "zero.offload_parameters": True}
    _train(config, {"plain": shared, "copies": shared | {"zero.hpz_ranks": 2}}, 4, tmp_path)
    for kind in ("weight", "exp_avg", "exp_avg_sq"):
        plain, copies = (step_tensors(tmp_path / name, kind, step=3) for name in ("plain", "copies"))
        assert all(torch.equal(tensor, copies[name]) for name, tensor in plain.items()), kind
