"""Which files a checkpoint has, and which checkpoints stay. tests/training writes whole ones from several ranks."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from megatape.checkpoint import writer
from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.manifest import save_manifest, write_file
from megatape.checkpoint.writer import prune
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.reliability.pace import Pace
from megatape.reliability.run_log import RunLog
from megatape.run_folder import RunFolder
from megatape.zero.state import ZeroState


def test_parameters_are_grouped_into_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, up to FILE_BYTES each; a larger tensor has a file of its own; every kind has the same groups."""
    monkeypatch.setattr(writer, "FILE_BYTES", 4 * 10)
    shapes: dict[str, tuple[int, ...]] = {"a": (4,), "b": (2, 3), "c": (1,), "huge": (5, 5), "d": (2,)}
    state: Any = SimpleNamespace(
        parameters=shapes, shape=shapes.__getitem__, tensors=dict.fromkeys(("weight", "momentum"), shapes)
    )
    groups = [["a", "b"], ["c"], ["huge"], ["d"]]
    assert writer._plan(cast(ZeroState, state), ()) == [
        (kind, f"{kind}-{number:05d}.safetensors", names) for number, names in enumerate(groups) for kind in state.tensors
    ]
    state.tensors["momentum"] = ["c", "d"]  # the others are frozen
    momentum = [(file, names) for kind, file, names in writer._plan(cast(ZeroState, state), ()) if kind == "momentum"]
    assert momentum == [("momentum-00001.safetensors", ["c"]), ("momentum-00003.safetensors", ["d"])]


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
    lease, topology = Lease(folder.lease), Topology(0, 1, 0)
    return RunEnvironment(folder, lease, topology, RunLog(folder, lease, topology), Pace())
