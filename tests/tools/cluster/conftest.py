"""Hosts shared by this folder's tests, and a single-host run to compare with."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.tools.cluster.slurm.job_array import JobArray
from tests.helpers.cluster.cluster_runs import need
from tests.helpers.cluster.hosts import Hosts
from tests.helpers.cluster.slurm_cluster import COMMANDS, Slurm
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import losses
from tests.helpers.runs.small_run import small_config
from tests.helpers.runs.training_cases import TRAIN_CASES


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    need()
    with Hosts(tmp_path_factory.mktemp("hosts")) as running:
        yield running


@pytest.fixture(scope="session")
def cluster_config(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return a run that takes a few seconds on 1, 2 or 4 ranks. tests/end_to_end/test_stages.py explains its eps."""
    config = small_config(data_directory, tmp_path_factory.mktemp("cluster") / "unused")
    config["training"] |= {"steps": 3, "micro_batch_size": 2}
    config["optimizer"]["eps"] = 1e-3
    return config


@pytest.fixture(scope="session")
def one_host(cluster_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Return the losses of a single process."""
    folder = tmp_path_factory.mktemp("one-host")
    config = copy.deepcopy(cluster_config)
    config["run"]["directory"] = str(folder)
    run_workers(TRAIN_CASES, 1, {"config": config, "cases": [{"name": "run"}]}, folder / "workers")
    return losses(folder / "run")


@pytest.fixture
def array(raw_config: dict[str, Any]) -> JobArray:
    """Return a job with a single run."""
    config = parse_config(raw_config, "test")
    return JobArray({"config.json": config}, Path(config.run.directory), False)


@pytest.fixture(scope="session")
def slurm(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Slurm:
    need(*COMMANDS)
    return Slurm(hosts, tmp_path_factory.mktemp("slurm"))
