"""Resuming after being killed while assembling units."""

from pathlib import Path

import pytest

from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.shared_folder.folder import PartialFolder
from tests.helpers.data.data_directory import hashes_of


def kill(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def kill_assembly_at(patch: pytest.MonkeyPatch, step: str) -> None:
    """Interrupt assembling at one of its steps. As in a killed process, nothing is cleaned up."""
    rename = Path.rename

    def rename_shards_until_killed(self: Path, target: Path) -> None:
        if "final" in target.parts and "00003" in target.name:
            kill()
        rename(self, target)

    def rename_all_but_the_result(self: Path, target: Path) -> None:
        if self.name == "final":
            kill()
        rename(self, target)

    def keep_units(path: Path, **_: object) -> None:
        if path.name == "units":
            kill()

    patch.setattr(PartialFolder, "remove", kill)
    if step == "rename a shard":
        patch.setattr(Path, "rename", rename_shards_until_killed)
    elif step == "write the index":
        patch.setattr("megatape.data.prepare.assembly.build_index", kill)
    elif step == "remove the units":
        patch.setattr("megatape.data.prepare.shared_folder.folder.shutil.rmtree", keep_units)
    else:
        patch.setattr(Path, "rename", rename_all_but_the_result)


@pytest.mark.parametrize("step", ["rename a shard", "write the index", "remove the units", "rename the result"])
def test_killed_assembly_is_resumed(
    corpus: PreparationOptions, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(corpus, tmp_path / "whole")
    with monkeypatch.context() as patch:
        kill_assembly_at(patch, step)
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()

    prepare(corpus, tmp_path / "out")

    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")
