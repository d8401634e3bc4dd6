"""Work of the main rank in a run's folder."""

import errno
from pathlib import Path

import pytest

from megatape.checkpoint.environment import RunEnvironment
from megatape.distributed import exchange
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.watch.pace import Pace
from megatape.run_folder import RunFolder
from megatape.utils import retries


@pytest.mark.parametrize("rank, calls", [(0, 2), (1, 0)])
def test_the_main_rank_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, calls: int) -> None:
    """After a transient error, and at once not after another one."""
    outcomes: list[str | OSError] = ["done", OSError(errno.EIO, "away")]
    monkeypatch.setattr(retries, "WAITS", (0.0,))
    monkeypatch.setattr(exchange, "gather_values", lambda mine, *_: [mine] if rank == 0 else [["done", None], mine])
    folder = RunFolder(tmp_path)
    topology = Topology(rank, rank + 1, 0)
    lease = Lease(folder.lease)
    environment = RunEnvironment(folder, lease, topology, RunLog(folder, lease, topology), Pace())

    def work() -> str:
        outcome = outcomes.pop()
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    assert environment.on_main(work) == "done"
    assert len(outcomes) == 2 - calls
    if rank == 0:
        outcomes += ["done", OSError(errno.ENOSPC, "full")]
        with pytest.raises(OSError, match="full"):
            environment.on_main(work)
        assert outcomes == ["done"]
