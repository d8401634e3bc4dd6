"""Removal of old checkpoints."""

from pathlib import Path

from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.hashed_files import write_file
from megatape.checkpoint.manifest import save_manifest
from megatape.checkpoint.pruning import prune
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.watch.pace import Pace
from megatape.run_folder import RunFolder


def test_newest_complete_checkpoints_stay(tmp_path: Path) -> None:
    """A corrupted one is neither counted nor removed. Of the others one may be spared, but none that a rollback moved aside."""
    folder = RunFolder(tmp_path)
    for step in range(1, 6):
        directory = folder.checkpoint(step)
        directory.mkdir(parents=True)
        save_manifest(directory, {"file": write_file(directory / "file", [b"%d" % step])}, {})
    (folder.checkpoint(4) / "file").write_text("longer")
    folder.checkpoint(2).with_name("step-00000002.rewound").mkdir()
    prune(_environment(folder), folder.checkpoint(5), 2, lambda found, step: [min(found)] if step == 5 else [])
    assert sorted(folder.checkpoints.iterdir()) == [folder.checkpoint(step) for step in (1, 3, 4, 5)]


def test_the_one_just_written_stays(tmp_path: Path) -> None:
    """Also when others have higher numbers."""
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.checkpoint(step).mkdir(parents=True)
        save_manifest(folder.checkpoint(step), {}, {})
    prune(_environment(folder), folder.checkpoint(1), 1, lambda *_: [])
    assert folder.list_checkpoints() == [folder.checkpoint(3), folder.checkpoint(1)]


def _environment(folder: RunFolder) -> RunEnvironment:
    lease = Lease(folder.lease)
    topology = Topology(0, 1, 0)
    return RunEnvironment(folder, lease, topology, RunLog(folder, lease, topology), Pace())
