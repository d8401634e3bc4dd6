"""Stages of ZeRO and their settings train the same model: bits, or the rounding of float32 sums."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import KINDS, assert_identical, step_tensors


@pytest.fixture
def config(raw_config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    raw_config["run"]["directory"] = str(tmp_path)
    raw_config["training"] |= {"steps": 3, "micro_batch_size": 1, "global_batch_size": 4}
    # With a larger eps, rounding in a gradient near zero does not become a full step.
    raw_config["optimizer"]["eps"] = 1e-3
    return raw_config


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_overlap_changes_no_bit(config: dict[str, Any], tmp_path: Path, precision: str) -> None:
    """Two micro-batches on each of two ranks, in buckets of one matrix or a few; and stage 1 equals stage 2."""
    cases = []
    for stage in (1, 2, 3):
        for overlap in (False, True):
            changes = {
                "training.precision": precision,
                "zero.bucket_size": 5000,
                "zero.stage": stage,
                "zero.overlap": overlap,
            }
            cases.append({"name": f"{stage}-{overlap}", "set": changes})

    assert_no_errors(run_cases(config, cases, 2, tmp_path / "workers", timeout=300))

    for stage in (1, 2, 3):
        for kind in ("weight", "exp_avg"):
            plain = step_tensors(tmp_path / f"{stage}-False", kind, step=3)
            overlapped = step_tensors(tmp_path / f"{stage}-True", kind, step=3)
            assert_identical(overlapped, plain, (stage, kind))
    # Stage 1 sums the micro-batches before the ranks. Float32 sums in another order differ by up to 7e-7 of the norm here,
    # and sums in bfloat16 by more than 1e-3.
    stage1 = step_tensors(tmp_path / "1-True", "exp_avg", step=3)
    stage2 = step_tensors(tmp_path / "2-True", "exp_avg", step=3)
    for name, tensor in stage2.items():
        difference = (stage1[name] - tensor).norm()
        assert difference <= 1e-5 * tensor.norm(), name


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_second_copy_changes_no_bit(config: dict[str, Any], tmp_path: Path, precision: str) -> None:
    """Four ranks in pairs that keep a copy, with buckets that release weights.

    In bfloat16 with an average of the weights, which is evaluated at each step, and with weights in host memory.
    """
    shared = {"training.precision": precision, "zero.stage": 3, "zero.bucket_size": 1000, "training.global_batch_size": 8}
    if precision == "bfloat16":
        shared |= {"optimizer.ema_decay": 0.5, "evaluation.interval": 1, "zero.offload_parameters": True}
    cases = [{"name": "plain", "set": shared}, {"name": "copies", "set": shared | {"zero.hpz_ranks": 2}}]

    assert_no_errors(run_cases(config, cases, 4, tmp_path / "workers", timeout=300))

    for kind in KINDS:
        plain = step_tensors(tmp_path / "plain", kind, step=3)
        assert_identical(step_tensors(tmp_path / "copies", kind, step=3), plain, kind)
