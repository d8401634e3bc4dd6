"""Hosts for the tests of this folder, set up once, and the single-host run that the others are compared with."""

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import bounds
from tests.bounds import assert_close
from tests.cluster.hosts import Hosts, missing
from tests.cluster.slurm_cluster import COMMANDS, Slurm
from tests.conftest import small_config
from tests.workers import run_workers


def need(*commands: str) -> None:
    """Skip tests that need daemons for minutes unless asked for; once asked for, fail if something is missing."""
    if os.environ.get("MEGATAPE_CLUSTER_TESTS") != "required":
        pytest.skip("starts sshd and Slurm on hosts of its own: as root, MEGATAPE_CLUSTER_TESTS=required runs it")
    if reason := missing(*commands):
        pytest.fail(f"MEGATAPE_CLUSTER_TESTS=required, but {reason}")


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    need()
    with Hosts(tmp_path_factory.mktemp("hosts")) as running:
        yield running


@pytest.fixture(scope="session")
def cluster_config(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run that takes a few seconds on 1, 2 or 4 ranks. eps as in tests/end_to_end/test_stages.py."""
    config = small_config(data_directory, tmp_path_factory.mktemp("cluster") / "unused")
    config["training"] |= {"steps": 3, "micro_batch_size": 2}
    config["optimizer"]["eps"] = 1e-3
    return config


@pytest.fixture(scope="session")
def one_host(cluster_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of a single process."""
    folder = tmp_path_factory.mktemp("one-host")
    config = copy.deepcopy(cluster_config)
    config["run"]["directory"] = str(folder)
    run_workers("tests.training.cases:train_cases", 1, {"config": config, "cases": [{"name": "run"}]}, folder / "workers")
    return losses(folder / "run")


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def check_losses(run: Path, expected: list[float]) -> None:
    assert_close(losses(run), expected, bounds.TRAINED)


def write_config(folder: Path, config: dict[str, Any], **changes: dict[str, Any]) -> Path:
    """Write config.json with changed sections into a folder; the run goes to FOLDER/run."""
    changed = copy.deepcopy(config)
    for section, values in (changes | {"run": {"directory": str(folder / "run")}}).items():
        changed[section] = changed.get(section, {}) | values
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(changed))
    return folder / "config.json"


@pytest.fixture(scope="session")
def slurm(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Slurm:
    need(*COMMANDS)
    return Slurm(hosts, tmp_path_factory.mktemp("slurm"))
