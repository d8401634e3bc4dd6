"""Data directories growing in place: the same documents in order, and no change after an error."""

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
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.errors import UserError
from tests.helpers.data.data_directory import hashes_of, read_all
from tests.helpers.data.merged_folders import check_whole, rename_table


@pytest.fixture
def grown(folders: list[Path], tmp_path: Path) -> Path:
    """A folder merged from the first data directory only, to append the others to."""
    merge(folders[:1], tmp_path / "all")
    return tmp_path / "all"


def hashes_but_of_index(folder: Path) -> dict[str, str]:
    hashes = hashes_of(folder)
    del hashes["index.json"]
    return hashes


def names_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def test_append_adds_documents_and_keeps_existing_files(folders: list[Path], grown: Path) -> None:
    """Appending works again on a grown folder. A run having the folder open keeps its data."""
    opened = TokenDataset(StoredSplit(grown, "train"), 8)
    before = hashes_but_of_index(grown)
    ids = read_all(grown)

    check_whole(grown, folders[:2], append(folders[1:2], grown))
    check_whole(grown, folders, append(folders[2:], grown))

    assert np.array_equal(opened.split.stream(0, opened.split.num_tokens), ids)
    after = hashes_but_of_index(grown)
    assert {name: after[name] for name in before} == before


def test_append_refuses_data_that_the_folder_has(folders: list[Path], grown: Path) -> None:
    append(folders[1:2], grown)

    with pytest.raises(UserError, match="has the same data as"):
        append(folders[1:2], grown)


def test_append_to_a_prepared_folder_replaces_leftover_files(folders: list[Path], tmp_path: Path) -> None:
    """A killed append has left part of a shard. The prepared folder becomes one of several."""
    merge(folders[:1], tmp_path / "copy")
    (folders[0] / "train-0001-00000-000000.tar").write_bytes(b"a part of a shard")

    index = append(folders[1:], folders[0])

    check_whole(folders[0], [tmp_path / "copy", *folders[1:]], index)


def run_killed(work: Callable[[], object], owner: Any, function: str, number: int) -> None:
    """Run work in a process dying at its n-th call to a function."""
    original = getattr(owner, function)
    num_calls = 0

    def die_at_number(*arguments: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == number:
            os._exit(9)
        return original(*arguments)

    child = os.fork()
    if child == 0:
        setattr(owner, function, die_at_number)
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9


@pytest.mark.parametrize(
    ("owner", "function", "number"),
    [
        pytest.param(os, "link", 1, id="first link"),
        pytest.param(os, "link", 6, id="sixth link"),
        pytest.param(Path, "rename", 1, id="first rename"),
        pytest.param(Path, "rename", 4, id="fourth rename"),
        pytest.param(Path, "rename", 7, id="seventh rename"),
    ],
)
def test_killed_append_is_finished_by_the_same_command(
    folders: list[Path], grown: Path, tmp_path: Path, owner: Any, function: str, number: int
) -> None:
    """The folder keeps its earlier data until its index is replaced. The same command finishes the work and cleans up."""
    undisturbed = tmp_path / "undisturbed"
    merge(folders[:1], undisturbed)
    append(folders[1:], undisturbed)
    before = read_all(grown)

    run_killed(lambda: append(folders[1:], grown), owner, function, number)
    assert np.array_equal(read_all(grown), before)

    check_whole(grown, folders, append(folders[1:], grown))
    assert names_below(grown) == names_below(undisturbed)


def test_killed_append_is_finished_before_another_one(folders: list[Path], grown: Path) -> None:
    """Before its own work, the second command finishes that of the killed one."""
    run_killed(lambda: append(folders[1:2], grown), Path, "rename", 3)

    check_whole(grown, folders, append(folders[2:], grown))

    assert not names_below(grown) & {"append.lock", "append.partial"}


@pytest.mark.parametrize("number", [1, 3])
def test_failed_append_leaves_the_folder_unchanged(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A failed append leaves nothing behind, even after renaming files. The error names the folder on a full disk."""
    before = hashes_of(folders[0])
    merge(folders[:1], tmp_path / "copy")
    targets = []
    rename = Path.rename

    def fail_at_number(self: Path, target: Path) -> Path:
        targets.append(target)
        if len(targets) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail_at_number)
        with pytest.raises(OSError, match=f"No space left on device: '{folders[0]}'"):
            append(folders[1:], folders[0])
    assert hashes_of(folders[0]) == before

    check_whole(folders[0], [tmp_path / "copy", *folders[1:]], append(folders[1:], folders[0]))


def test_append_follows_no_link_and_replaces_no_file(folders: list[Path], tmp_path: Path) -> None:
    """Appending replaces neither a planted lock nor a file listed in the index, and writes through no planted link."""
    folder = folders[0]
    victim = tmp_path / ".bashrc"
    victim.write_text("content")
    lock = folder / "append.lock"
    lock.symlink_to(victim)
    with pytest.raises(UserError, match="append.lock: a link, a pipe or a device"):
        append(folders[1:2], folder)
    assert victim.read_text() == "content"
    lock.unlink()

    appended_table = load_index(folders[1]).document_tables["train"][0].file
    listed = rename_table(folder, 0, f"train-0001{appended_table.removeprefix('train')}")
    before = hashes_of(folder)
    with pytest.raises(UserError, match=f"lists {listed.name} already, which would be replaced"):
        append(folders[1:2], folder)
    assert hashes_of(folder) == before

    (folder / "append.partial").symlink_to(tmp_path)
    with pytest.raises(UserError, match="append.partial is a link, through which nothing is written"):
        append(folders[1:2], folder)
