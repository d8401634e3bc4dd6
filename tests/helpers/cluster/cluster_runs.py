"""Requirements, configurations and comparisons for tests on several hosts."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.cluster.hosts import missing
from tests.helpers.runs.run_folders import losses


def need(*commands: str) -> None:
    """Skip tests starting daemons, unless MEGATAPE_CLUSTER_TESTS requires them. Then a missing command fails them."""
    if os.environ.get("MEGATAPE_CLUSTER_TESTS") != "required":
        pytest.skip("starts sshd and Slurm on hosts of its own: as root, MEGATAPE_CLUSTER_TESTS=required runs it")
    reason = missing(*commands)
    if reason:
        pytest.fail(f"MEGATAPE_CLUSTER_TESTS=required, but {reason}")


def check_losses(run: Path, expected: list[float]) -> None:
    assert_close(losses(run), expected, bounds.TRAINED)


def write_config(folder: Path, config: dict[str, Any], **changes: dict[str, Any]) -> Path:
    """Write config.json with changed sections to a folder. The run directory is FOLDER/run."""
    changed = copy.deepcopy(config)
    for section, values in (changes | {"run": {"directory": str(folder / "run")}}).items():
        changed[section] = changed.get(section, {}) | values
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(changed))
    return folder / "config.json"
