"""If one rank fails while the others wait for it, they exit too, and say which rank failed and why."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from megatape.runtime.topology import Topology
from megatape.runtime.watch import Limits, RankFailed, Watch
from tests.workers import run_workers


def test_a_rank_that_fails_alone(tmp_path: Path) -> None:
    results = run_workers("tests.runtime.test_watch:fail_on_one", 3, None, tmp_path, timeout=90)
    assert results[1] == "ValueError: its disk is full"
    for rank in (0, 2):
        assert results[rank].startswith("RankFailed: rank 1 failed: ValueError: its disk is full"), results[rank]


def fail_on_one(_: Any, topology: Topology) -> str:
    try:
        with Watch(topology, Limits(period=0.2, silence=20.0, suspicion=5.0, grace=5.0)):
            dist.all_reduce(torch.ones(1))
            if topology.rank == 1:
                raise ValueError("its disk is full")
            dist.all_reduce(torch.ones(1))
    except (ValueError, RankFailed) as error:
        dist.destroy_process_group()
        return f"{type(error).__name__}: {error}"
    return "no error"
