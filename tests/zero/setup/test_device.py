"""Selection of a rank's GPU, and of its number of threads on a CPU."""

import os

import pytest

from megatape.distributed.topology import Topology
from megatape.zero.setup.device import device_number, num_threads


def test_a_rank_uses_the_gpu_of_its_local_rank() -> None:
    assert device_number(Topology(5, 8, 1, local_size=4), visible=4) == 1


def test_a_rank_uses_the_only_gpu_that_it_sees() -> None:
    """The scheduler may show each rank only its own GPU."""
    assert device_number(Topology(5, 8, 1, local_size=4), visible=1) == 0


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="8 ranks on .*, which shows 4 GPUs"):
        device_number(Topology(5, 8, 5, local_size=8), visible=4)


def test_ranks_of_a_host_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEGATAPE_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert num_threads(Topology(0, 1, 0)) == cores
    assert num_threads(Topology(0, 2 * cores, 0, local_size=2 * cores)) == 1


def test_the_environment_sets_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATAPE_THREADS", "3")
    assert num_threads(Topology(0, 1, 0)) == 3


@pytest.mark.parametrize("value", ["0", "-1", "two", ""])
def test_an_unfit_number_of_threads_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MEGATAPE_THREADS", value)
    with pytest.raises(ValueError, match="MEGATAPE_THREADS is"):
        num_threads(Topology(0, 1, 0))
