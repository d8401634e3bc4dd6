"""Checks for faulty hardware find nothing in sound runs, and change nothing."""

from pathlib import Path
from typing import Any

import pytest

from megatape.run_folder import RunFolder
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import assert_identical, comparable_metrics, verified_tensors
from tests.helpers.runs.small_run import small_config

STEPS = 4
INTERVALS = ("training.memory_check_interval", "training.computation_check_interval")
# Name -> settings for a run
SETTINGS: dict[str, dict[str, Any]] = {
    "stage 0": {"zero.stage": 0},
    "stage 1, average": {"zero.stage": 1, "optimizer.ema_decay": 0.9},
    "stage 2, muon": {"zero.stage": 2, "optimizer.kind": "muon"},
    "stage 2, bfloat16": {"zero.stage": 2, "training.precision": "bfloat16"},
    "stage 3, average, bfloat16": {"zero.stage": 3, "optimizer.ema_decay": 0.9, "training.precision": "bfloat16"},
    "offloaded": {"zero.stage": 2, "zero.offload_optimizer": True},
    "recomputed": {"zero.stage": 1, "training.activation_checkpointing": "full"},
    "adapters": {"zero.stage": 3, "model.lora": {"rank": 2, "alpha": 4}, "training.trainable": ["adapters"]},
    "tensor": {"zero.stage": 1, "parallel.tp": 2},
    "context": {"zero.stage": 3, "parallel.cp": 2},
}


@pytest.fixture(scope="module")
def folders(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train twice with each setting, without and with all checks. Returns the folder."""
    folder = tmp_path_factory.mktemp("checks")
    config = small_config(data_directory, folder / "runs")
    config["training"] |= {"steps": STEPS, "micro_batch_size": 1}
    config["evaluation"]["interval"] = 1
    cases = []
    for name, settings in SETTINGS.items():
        for checks, interval in (("never", 0), ("always", 1)):
            cases.append({"name": f"{name}, {checks}", "set": settings | dict.fromkeys(INTERVALS, interval)})
    assert_no_errors(run_cases(config, cases, 4, folder / "workers"))
    return folder / "runs"


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_sound_run_passes_all_checks(folders: Path, name: str) -> None:
    checked = RunFolder(folders / f"{name}, always")
    unchecked = RunFolder(folders / f"{name}, never")
    assert_identical(verified_tensors(checked.checkpoint(STEPS)), verified_tensors(unchecked.checkpoint(STEPS)))
    assert comparable_metrics(checked) == comparable_metrics(unchecked)
