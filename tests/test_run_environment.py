"""Work of the main rank in a run directory."""

import errno
from pathlib import Path

import pytest

from megatape.distributed.topology import Topology
from megatape.distributed.values import exchange
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.watch.pace import Pace
from megatape.run_environment import RunEnvironment
from megatape.run_folder import RunFolder
from megatape.utils.files import retries

TRANSIENT = OSError(errno.EIO, "away")
PERMANENT = OSError(errno.ENOSPC, "full")


class Work:
    """Work with prepared outcomes, the last one first."""

    def __init__(self, *outcomes: str | OSError) -> None:
        self.outcomes = list(outcomes)

    def __call__(self) -> str:
        outcome = self.outcomes.pop()
        if isinstance(outcome, OSError):
            raise outcome
        return outcome


def environment_of(rank: int, directory: Path) -> RunEnvironment:
    folder = RunFolder(directory)
    topology = Topology(rank, rank + 1, 0)
    lease = Lease(folder.lease)
    return RunEnvironment(folder, lease, topology, RunLog(folder, lease, topology), Pace())


@pytest.fixture
def main_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunEnvironment:
    """Environment of the main rank, which retries once and without waiting."""
    monkeypatch.setattr(retries, "WAITS", (0.0,))
    monkeypatch.setattr(exchange, "gather_values", lambda value, *_: [value])
    return environment_of(0, tmp_path)


def test_the_main_rank_retries_after_a_transient_error(main_environment: RunEnvironment) -> None:
    work = Work("done", TRANSIENT)
    assert main_environment.on_main(work) == "done"
    assert work.outcomes == []


def test_the_main_rank_does_not_retry_after_another_error(main_environment: RunEnvironment) -> None:
    work = Work("done", PERMANENT)
    with pytest.raises(OSError, match="full"):
        main_environment.on_main(work)
    assert work.outcomes == ["done"]


def test_other_ranks_get_the_result_without_working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "gather_values", lambda value, *_: [["done", None], value])
    work = Work("done", TRANSIENT)
    assert environment_of(1, tmp_path).on_main(work) == "done"
    assert work.outcomes == ["done", TRANSIENT]
