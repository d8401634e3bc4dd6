"""A finished run that tests damage, each its own copy."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.small_run import small_config
from tests.helpers.runs.training_cases import TRAIN_CASES


@pytest.fixture(scope="session")
def trained(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Train "base" for 4 steps, leaving checkpoints 3 and 4, and return its configuration. Tests must not change the run."""
    folder = tmp_path_factory.mktemp("trained")
    raw_config = small_config(data_directory, folder / "run")
    raw_config["checkpoint"] = {"interval": 1, "keep": 2}
    raw_config["evaluation"]["interval"] = 100
    run_workers(TRAIN_CASES, 2, {"config": raw_config, "cases": [{"name": "base"}]}, folder / "workers")
    folder = Path(raw_config["run"]["directory"]) / "base" / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000003", "step-00000004"], "keep-last-2"
    return raw_config


@pytest.fixture
def finished(trained: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Copy the trained run, so that a test may change it."""
    config = copy.deepcopy(trained)
    config["run"]["directory"] = str(shutil.copytree(trained["run"]["directory"], tmp_path / "run"))
    return config
