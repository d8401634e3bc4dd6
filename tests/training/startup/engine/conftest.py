"""Fixtures for the kernels that a run tries when starting."""

import pytest

from megatape.distributed.topology import Topology
from megatape.training.startup.engine import working_kernels


@pytest.fixture
def second_rank(monkeypatch: pytest.MonkeyPatch) -> Topology:
    """Simulate the second of two ranks, with the first finding no fault."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(working_kernels.LOG, "info", lambda text, *values: print(text % values))
    monkeypatch.setattr(working_kernels, "gather_values", lambda fault, topology: [None, fault])
    return Topology(rank=0, world_size=2, local_rank=0)
