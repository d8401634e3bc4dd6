"""Selection of a checkpoint on one rank. tests/end_to_end/test_lost_checkpoints.py resumes whole runs on two."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from megatape.checkpoint.load.reader import CheckpointReader
from megatape.checkpoint.load.selection import find_newest, find_stable_checkpoint, open_named
from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.watch.pace import Pace
from megatape.run_environment import RunEnvironment
from megatape.run_folder import RunFolder
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_environments import accept, copied_run
from tests.helpers.runs.run_folders import flip_byte

FIXTURE = Path(__file__).parents[2] / "compatibility" / "fixtures" / "run"
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


def test_the_newest_valid_checkpoint_is_selected(environment: RunEnvironment) -> None:
    """A newer corrupted checkpoint is moved aside, unless the run is refused."""
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


def test_a_run_without_a_valid_checkpoint_is_refused(environment: RunEnvironment) -> None:
    """The run's corrupted checkpoints stay where they are."""
    for name in (FIRST, LAST):
        corrupt(environment, name)
    with pytest.raises(UserError, match="none of the 2 checkpoints is valid"):
        find_newest(environment, accept)
    assert names(environment) == [FIRST, LAST]


def test_a_run_without_checkpoints_selects_none(environment: RunEnvironment) -> None:
    shutil.rmtree(environment.folder.checkpoints)
    assert find_newest(environment, accept) is None


def test_a_named_checkpoint_is_opened(environment: RunEnvironment) -> None:
    reader = open_named(environment.folder.checkpoints / LAST, environment, accept)
    assert reader is not None
    assert reader.step == 4


def test_a_named_checkpoint_with_newer_ones_is_refused(environment: RunEnvironment) -> None:
    """Training on would mix two histories in one run directory."""
    with pytest.raises(UserError, match=f"holds checkpoints newer than .*{FIRST} .*up to {LAST}"):
        open_named(environment.folder.checkpoints / FIRST, environment, accept)


def test_a_corrupted_named_checkpoint_is_refused(environment: RunEnvironment) -> None:
    corrupt(environment, LAST)
    with pytest.raises(UserError, match=f"{LAST} is corrupted"):
        open_named(environment.folder.checkpoints / LAST, environment, accept)


def test_the_main_rank_selects_for_all(tmp_path: Path) -> None:
    """Another rank's view of newer checkpoints does not count. Every rank refuses what the main rank refuses."""
    results = run_workers("tests.checkpoint.load.test_selection:open_with_unlike_views", 2, str(tmp_path), tmp_path / "workers")
    assert len(results) == 2
    for result in results:
        assert result["opened"] == 2
        assert "no such folder" in result["missing"]
        assert f"up to {LAST}" in result["newer"]


def open_with_unlike_views(folder: str, topology: Topology) -> dict[str, Any]:
    """Open checkpoints on two ranks, whose copies of a run differ: only one of them has the newer checkpoint.

    Returns:
        Errors for a checkpoint missing on the main rank and for one with newer checkpoints there, and the step opened.
    """
    copy = Path(folder) / f"rank{topology.rank}" / "run"
    shutil.copytree(FIXTURE, copy)
    run = RunFolder(copy)
    lease = Lease(run.lease)
    environment = RunEnvironment(run, lease, topology, RunLog(run, lease, topology), Pace())
    first = run.checkpoints / FIRST
    last = run.checkpoints / LAST
    results: dict[str, Any] = {}

    def error_of(directory: Path) -> str:
        with pytest.raises((UserError, FileNotFoundError)) as raised:
            open_named(directory, environment, accept)
        return str(raised.value)

    if topology.is_main:
        shutil.move(last, copy / LAST)
    results["missing"] = error_of(last)
    results["opened"] = open_named(first, environment, accept).step
    if topology.is_main:
        shutil.move(copy / LAST, last)
    else:
        shutil.rmtree(last)
    results["newer"] = error_of(first)
    return results


def test_a_rollback_moves_newer_checkpoints_aside(environment: RunEnvironment) -> None:
    def all_but_newest(steps: Iterable[int]) -> list[int]:
        return sorted(steps, reverse=True)[1:]

    reader = find_stable_checkpoint(environment, all_but_newest)
    assert reader is not None
    assert reader.step == 2
    assert names(environment) == [FIRST, f"{LAST}.rewound"]
    assert environment.folder.latest.read_text().strip().endswith(FIRST)


def test_a_rollback_without_a_stable_checkpoint_moves_nothing(environment: RunEnvironment) -> None:
    assert find_stable_checkpoint(environment, lambda steps: []) is None
    assert names(environment) == [FIRST, LAST]


def test_a_rollback_without_a_valid_checkpoint_moves_nothing(environment: RunEnvironment) -> None:
    """The run continues. Its corrupted checkpoints stay where they are, as when resuming."""
    for name in (FIRST, LAST):
        corrupt(environment, name)
    assert find_stable_checkpoint(environment, lambda steps: sorted(steps, reverse=True)) is None
    assert names(environment) == [FIRST, LAST]
