"""Data directories that grow in place: the same documents in order, and nothing changed after an error."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.data.derived.append import append
from megatape.data.derived.merge import merge
from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.token_dataset import TokenDataset
from megatape.errors import UserError
from tests.helpers.data.data_directory import (
    hashes_of,
    read_all,
)
from tests.helpers.data.merged_folders import check_whole, rename_table


def test_append_adds_documents_and_keeps_existing_files(folders: list[Path], tmp_path: Path) -> None:
    """Who has the folder open keeps its data; a second append, also of a folder that was merged, adds others only."""
    merge(folders[:1], tmp_path / "all")
    opened = TokenDataset(StoredSplit(tmp_path / "all", "train"), 8)
    before = hashes_of(tmp_path / "all")
    ids = read_all(tmp_path / "all")
    check_whole(tmp_path / "all", folders[:2], append(folders[1:2], tmp_path / "all"))
    check_whole(tmp_path / "all", folders, append(folders[2:], tmp_path / "all"))
    assert np.array_equal(opened.split.stream(0, opened.split.num_tokens), ids)
    after = hashes_of(tmp_path / "all")
    assert {name: after[name] for name in before if name != "index.json"} == {
        name: found for name, found in before.items() if name != "index.json"
    }
    with pytest.raises(UserError, match="has the same data as"):
        append(folders[1:2], tmp_path / "all")


def test_append_to_a_prepared_folder_replaces_leftover_files(folders: list[Path], tmp_path: Path) -> None:
    """It has the files of its preparation, and becomes a folder of several; what a killed append has left is replaced."""
    merge(folders[:1], tmp_path / "copy")
    (folders[0] / "train-0001-00000-000000.tar").write_bytes(b"a part of a shard")
    check_whole(folders[0], [tmp_path / "copy", *folders[1:]], append(folders[1:], folders[0]))


def names_of(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def killed(work: Callable[[], object], place: str, number: int) -> None:
    """Run work in a process that dies in its n-th call of os.link or Path.rename."""
    calls: list[None] = []
    owner, name = {"link": (os, "link"), "rename": (Path, "rename")}[place]
    original = getattr(owner, name)

    def killing(*arguments: Any) -> Any:
        calls.append(None)
        if len(calls) == number:
            os._exit(9)
        return original(*arguments)

    child = os.fork()
    if not child:
        setattr(owner, name, killing)
        work()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize(("place", "number"), [("link", 1), ("link", 6), ("rename", 1), ("rename", 4), ("rename", 7)])
def test_killed_append_is_finished_by_the_same_command(folders: list[Path], tmp_path: Path, place: str, number: int) -> None:
    """The folder keeps its earlier data until its index is replaced. The same command finishes the work and cleans up."""
    merge(folders[:1], tmp_path / "all")
    merge(folders[:1], tmp_path / "undisturbed")
    append(folders[1:], tmp_path / "undisturbed")
    before = read_all(tmp_path / "all")
    killed(lambda: append(folders[1:], tmp_path / "all"), place, number)
    assert np.array_equal(read_all(tmp_path / "all"), before)
    check_whole(tmp_path / "all", folders, append(folders[1:], tmp_path / "all"))
    assert names_of(tmp_path / "all") == names_of(tmp_path / "undisturbed")


def test_killed_append_is_finished_before_another_one(folders: list[Path], tmp_path: Path) -> None:
    """The second command finishes the work of the killed one before its own."""
    merge(folders[:1], tmp_path / "all")
    killed(lambda: append(folders[1:2], tmp_path / "all"), "rename", 3)
    check_whole(tmp_path / "all", folders, append(folders[2:], tmp_path / "all"))
    assert not names_of(tmp_path / "all") & {"append.lock", "append.partial"}


@pytest.mark.parametrize("number", [1, 3])
def test_failed_append_leaves_the_folder_unchanged(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Nothing of a failed append remains, even if it has renamed files already. The error names the folder of a full disk."""
    before = hashes_of(folders[0])
    calls = []
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match=f"No space left on device: '{folders[0]}'"):
            append(folders[1:], folders[0])
    assert hashes_of(folders[0]) == before
    check_whole(folders[0], [merged_copy(folders[0], tmp_path), *folders[1:]], append(folders[1:], folders[0]))


def merged_copy(folder: Path, tmp_path: Path) -> Path:
    merge([folder], tmp_path / "copy")
    return tmp_path / "copy"


def test_append_follows_no_link_and_replaces_no_file(folders: list[Path], tmp_path: Path) -> None:
    """Appending replaces neither the lock nor a file listed in the index."""
    victim = tmp_path / ".bashrc"
    victim.write_text("kept")
    lock = folders[0] / "append.lock"
    lock.symlink_to(victim)
    with pytest.raises(UserError, match="append.lock: a link, a pipe or a device"):
        append(folders[1:2], folders[0])
    assert victim.read_text() == "kept"
    lock.unlink()
    taken = rename_table(folders[0], 0, f"train-0001{load_index(folders[1]).document_tables['train'][0].file[5:]}")
    before = hashes_of(folders[0])
    with pytest.raises(UserError, match=f"lists {taken.name} already, which would be replaced"):
        append(folders[1:2], folders[0])
    assert hashes_of(folders[0]) == before
    (folders[0] / "append.partial").symlink_to(tmp_path)
    with pytest.raises(UserError, match="append.partial is a link, through which nothing is written"):
        append(folders[1:2], folders[0])
