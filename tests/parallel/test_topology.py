"""Ranks from a launcher's environment."""

import pytest

from megatape.parallel.topology import Topology, discover

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.setenv(name, "")  # so that what discover() sets is taken back after the test
        monkeypatch.delenv(name)


def test_alone() -> None:
    assert discover() == Topology(0, 1, 0)


def test_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(NAMES, ("5", "8", "1", "host", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    topology = discover(tensor_size=2)
    assert (topology.tensor_rank, topology.data_rank, topology.data_size) == (1, 2, 4)


def test_half_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT not set"):
        discover()


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_launchers_whose_ranks_are_not_read_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Otherwise every process would take itself for the whole run, and all would write the same folder."""
    monkeypatch.setenv(name, "2")
    with pytest.raises(ValueError, match=name):
        discover()
