"""Selection of a checkpoint on one rank. tests/end_to_end/test_lost_checkpoints.py resumes whole runs on two."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.selection import find_newest, find_stable_checkpoint, open_named
from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.watch.pace import Pace
from megatape.run_folder import RunFolder
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_environments import accept, copied_run
from tests.helpers.runs.run_folders import flip_byte

FIXTURE = Path(__file__).parents[1] / "compatibility" / "fixtures" / "run"
FIRST = "step-00000002"
LAST = "step-00000004"


@pytest.fixture
def environment(tmp_path: Path) -> RunEnvironment:
    """Environment of a run with the checkpoints FIRST and LAST."""
    return copied_run(tmp_path / "run")


def names(environment: RunEnvironment) -> list[str]:
    return sorted(path.name for path in environment.folder.checkpoints.iterdir())


def corrupt(environment: RunEnvironment, name: str) -> None:
    flip_byte(environment.folder.checkpoints / name / "weight-00000.safetensors")


def test_the_newest_valid_checkpoint(environment: RunEnvironment) -> None:
    """A newer one that is corrupted is moved aside, unless the run is refused."""
    corrupt(environment, LAST)

    def refuse(reader: CheckpointReader) -> None:
        raise UserError("another model")

    with pytest.raises(UserError, match="another model"):
        find_newest(environment, refuse)
    assert names(environment) == [FIRST, LAST]

    reader = find_newest(environment, accept)
    assert reader is not None
    assert reader.step == 2
    assert names(environment) == [FIRST, f"{LAST}.corrupted"]


def test_no_valid_checkpoint(environment: RunEnvironment) -> None:
    for name in (FIRST, LAST):
        corrupt(environment, name)
    with pytest.raises(UserError, match="none of the 2 checkpoints is valid"):
        find_newest(environment, accept)
    assert names(environment) == [FIRST, LAST]
    shutil.rmtree(environment.folder.checkpoints)
    assert find_newest(environment, accept) is None


def test_a_named_checkpoint(environment: RunEnvironment) -> None:
    last = environment.folder.checkpoints / LAST
    reader = open_named(last, environment, accept)
    assert reader is not None
    assert reader.step == 4
    with pytest.raises(UserError, match=f"holds checkpoints newer than .*{FIRST} .*up to {LAST}"):
        open_named(environment.folder.checkpoints / FIRST, environment, accept)
    corrupt(environment, LAST)
    with pytest.raises(UserError, match=f"{LAST} is corrupted"):
        open_named(last, environment, accept)


def test_the_main_rank_looks_for_all(tmp_path: Path) -> None:
    """Another rank's view of newer checkpoints does not count, and what the main rank refuses every rank refuses."""
    results = run_workers("tests.checkpoint.test_selection:open_with_unlike_views", 2, str(tmp_path), tmp_path / "workers")
    assert results[0]["opened"] == results[1]["opened"] == 2
    for result in results:
        assert "no such folder" in result["missing"]
        assert f"up to {LAST}" in result["newer"]


def open_with_unlike_views(folder: str, topology: Topology) -> dict[str, Any]:
    """Open checkpoints by ranks that have copies of a run, of which only one has the newer checkpoint."""
    copy = Path(folder) / f"rank{topology.rank}" / "run"
    shutil.copytree(FIXTURE, copy)
    run = RunFolder(copy)
    lease = Lease(run.lease)
    environment = RunEnvironment(run, lease, topology, RunLog(run, lease, topology), Pace())
    first = run.checkpoints / FIRST
    last = run.checkpoints / LAST
    found: dict[str, Any] = {}

    def error_of(directory: Path) -> str:
        with pytest.raises((UserError, FileNotFoundError)) as raised:
            open_named(directory, environment, accept)
        return str(raised.value)

    if topology.is_main:
        shutil.move(last, copy / LAST)
    found["missing"] = error_of(last)
    found["opened"] = open_named(first, environment, accept).step
    if topology.is_main:
        shutil.move(copy / LAST, last)
    else:
        shutil.rmtree(last)
    found["newer"] = error_of(first)
    return found


def test_a_rollback_moves_newer_checkpoints_aside(environment: RunEnvironment) -> None:
    def all_but_newest(steps: Iterable[int]) -> list[int]:
        return sorted(steps, reverse=True)[1:]

    reader = find_stable_checkpoint(environment, all_but_newest)
    assert reader is not None
    assert reader.step == 2
    assert names(environment) == [FIRST, f"{LAST}.rewound"]
    assert environment.folder.latest.read_text().strip().endswith(FIRST)


def test_a_rollback_without_a_stable_checkpoint(environment: RunEnvironment) -> None:
    assert find_stable_checkpoint(environment, lambda steps: []) is None
    assert names(environment) == [FIRST, LAST]
