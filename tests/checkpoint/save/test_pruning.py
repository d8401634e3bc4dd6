"""Removing old checkpoints."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from megatape.checkpoint.format.hashed_files import write_file
from megatape.checkpoint.format.manifest import save_manifest
from megatape.checkpoint.save.pruning import prune
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.watch.pace import Pace
from megatape.run_environment import RunEnvironment
from megatape.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run directory with checkpoints of the steps 1 to 5."""
    folder = RunFolder(tmp_path)
    for step in range(1, 6):
        checkpoint = folder.checkpoint(step)
        checkpoint.mkdir(parents=True)
        record = write_file(checkpoint / "file", [b"%d" % step])
        save_manifest(checkpoint, {"file": record}, {})
    return folder


def spare_oldest(steps: Iterable[int], step: int) -> list[int]:
    """Spare the oldest checkpoint when pruning after step 5."""
    if step == 5:
        return [min(steps)]
    return []


def spare_none(steps: Iterable[int], step: int) -> list[int]:
    return []


def test_newest_complete_checkpoints_stay(folder: RunFolder) -> None:
    """A corrupted checkpoint is neither counted nor removed. One that a rollback moved aside is removed, even if it is old."""
    (folder.checkpoint(4) / "file").write_text("longer")
    folder.checkpoint(2).with_name("step-00000002.rewound").mkdir()
    prune(_environment(folder), folder.checkpoint(5), 2, spare_oldest)
    assert sorted(folder.checkpoints.iterdir()) == [folder.checkpoint(step) for step in (1, 3, 4, 5)]


def test_the_checkpoint_just_written_stays(folder: RunFolder) -> None:
    """The checkpoint just written stays even if others have higher numbers."""
    prune(_environment(folder), folder.checkpoint(1), 1, spare_none)
    assert folder.list_checkpoints() == [folder.checkpoint(5), folder.checkpoint(1)]


def _environment(folder: RunFolder) -> RunEnvironment:
    lease = Lease(folder.lease)
    topology = Topology(0, 1, 0)
    return RunEnvironment(folder, lease, topology, RunLog(folder, lease, topology), Pace())
