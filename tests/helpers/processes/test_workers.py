"""The harness itself names failing or hanging workers, showing their output, and leaves no process behind."""

import time
from pathlib import Path
from typing import Any

import pytest

from megatape.distributed.topology import Topology
from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import run_workers


def hang_on_rank_1(payload: Any, topology: Topology) -> None:
    print(f"rank {topology.rank} is here", flush=True)
    if topology.rank == 1:
        time.sleep(600)


def fail_on_rank_1(payload: Any, topology: Topology) -> None:
    if topology.rank == 1:
        raise RuntimeError("something broke")
    time.sleep(600)


def test_a_hanging_worker_is_named_and_killed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)ranks \[1\] still running.*rank 1 is here"):
        run_workers("tests.helpers.processes.test_workers:hang_on_rank_1", 2, None, tmp_path, timeout=4)


def test_a_failing_worker_ends_all(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(AssertionError, match=r"(?s)rank 1 failed.*something broke"):
        run_workers("tests.helpers.processes.test_workers:fail_on_rank_1", 2, None, tmp_path)
    assert time.monotonic() - started < scaled(60)
