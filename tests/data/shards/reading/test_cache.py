"""Copies of shards on a node's local disk."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megatape.data.shards.index import load_index
from megatape.data.shards.reading import cache
from megatape.data.shards.reading.cache import CacheFolder, ShardCache
from megatape.data.shards.reading.reader import SplitReader
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.token_dataset import TokenDataset
from tests.helpers.data.data_directory import Documents, MakeDirectory, first_byte, flip, member_of, read_all
from tests.helpers.processes.threads import run_in_threads


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folder for copies, not created yet."""
    return tmp_path / "cache"


def read_copies(directory: Path, root: Path) -> np.ndarray:
    """Return all training tokens of a data directory, read from copies."""
    reader = SplitReader(directory, load_index(directory), "train", CacheFolder(root))
    return np.concatenate(list(reader.members()))


def partial_copies(root: Path) -> list[Path]:
    return list(root.rglob("*.partial"))


def test_copies_have_the_same_tokens(directory: Path, root: Path) -> None:
    assert np.array_equal(read_copies(directory, root), read_all(directory))
    assert not partial_copies(root)


def test_a_planted_link_is_not_followed(directory: Path, root: Path, tmp_path: Path) -> None:
    """Another user of the disk may have planted the link. A killed process may have left a partial copy."""
    expected = read_copies(directory, root)
    victim = tmp_path / "victim"
    victim.write_bytes(b"unchanged")
    copies = sorted(root.rglob("*.tar"))
    for number, copy in enumerate(copies):
        copy.unlink()
        partial = copy.with_name(f"{copy.name}.partial")
        if number == 0:
            partial.symlink_to(victim)
        else:
            partial.write_bytes(b"a part")

    assert np.array_equal(read_copies(directory, root), expected)
    assert victim.read_bytes() == b"unchanged"
    assert sorted(root.rglob("*.tar")) == copies


def test_only_the_shards_that_are_read_are_copied(directory: Path, root: Path) -> None:
    TokenDataset(StoredSplit(directory, "train", CacheFolder(root)), 32).tokens(0)
    (copy,) = root.rglob("*.tar")
    assert copy.name == load_index(directory).splits["train"].shards[0].file


def test_a_copied_shard_is_not_read_from_the_original_again(directory: Path, root: Path) -> None:
    expected = TokenDataset(StoredSplit(directory, "train", CacheFolder(root)), 32).tokens(0)
    (copy,) = root.rglob("*.tar")
    flip(directory / copy.name, first_byte(0))
    assert np.array_equal(TokenDataset(StoredSplit(directory, "train", CacheFolder(root)), 32).tokens(0), expected)


def test_other_data_has_other_copies(make_directory: MakeDirectory, documents: Documents, root: Path) -> None:
    first = make_directory(documents, name="first")
    second = make_directory(documents[:100][::-1], name="second")
    for directory in (first, second):
        assert np.array_equal(read_copies(directory, root), read_all(directory))
    assert len(list(root.iterdir())) == 2


def test_ranks_of_a_node_copy_once(directory: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = load_index(directory)
    shard = index.splits["train"].shards[0]
    copied = []

    def copy_slowly(source: str, target: Path, size: int, copy: Callable[[str, Path], object] = cache.copy_file) -> None:
        copied.append(source)
        time.sleep(0.2)
        copy(source, target)

    monkeypatch.setattr(cache, "copy_file", copy_slowly)
    run_in_threads(lambda: ShardCache(CacheFolder(root), str(directory), index).local(shard), count=4, timeout=20)
    assert copied == [f"{directory}/{shard.file}"]


def test_a_corrupted_original_leaves_no_copy(directory: Path, root: Path) -> None:
    shard = load_index(directory).splits["train"].shards[0]
    flip(directory / shard.file, first_byte(1))
    with pytest.raises(ValueError, match=f"{directory / shard.file} member 0: corrupted, bytes"):
        read_copies(directory, root)
    assert not list(root.rglob("*.tar"))
    assert not partial_copies(root)


@pytest.mark.parametrize("opened", [False, True], ids=["before", "while read"])
def test_a_corrupted_copy_is_replaced(directory: Path, root: Path, opened: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """The warning names the copy. Two ranks that find the same corrupted copy make a single new one."""
    tokens = read_copies(directory, root)
    expected = tokens[64:128]
    ranks = [SplitReader(directory, load_index(directory), "train", CacheFolder(root)) for _ in range(2)]
    if opened:
        for rank in ranks:
            assert np.array_equal(member_of(rank, 1), expected)
    copy = min(root.rglob("*.tar"))
    flip(copy, first_byte(1))

    assert np.array_equal(member_of(ranks[0], 1), expected)
    inode_of_new_copy = copy.stat().st_ino
    assert np.array_equal(member_of(ranks[1], 1), expected)
    assert copy.stat().st_ino == inode_of_new_copy
    assert copy.read_bytes() == (directory / copy.name).read_bytes()
    assert f"{copy} member 1: corrupted" in capfd.readouterr().err


def test_a_disk_that_corrupts_every_copy_is_reported(directory: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_and_corrupt(source: str, target: Path, size: int, copy: Callable[[str, Path], object] = cache.copy_file) -> None:
        copy(source, target)
        flip(target, first_byte(0))

    monkeypatch.setattr(cache, "copy_file", copy_and_corrupt)
    with pytest.raises(ValueError, match=f"{root}/.* member 0: corrupted, .* twice, though {directory}/.* is right"):
        read_copies(directory, root)


def test_a_truncated_copy_is_replaced(directory: Path, root: Path) -> None:
    expected = read_copies(directory, root)
    copy = min(root.rglob("*.tar"))
    copy.write_bytes(copy.read_bytes()[:-1])
    assert np.array_equal(read_copies(directory, root), expected)


def test_an_original_of_another_size_is_not_copied(directory: Path, root: Path) -> None:
    """A server may announce any length: no more bytes are written to the disk than the index says."""
    index = load_index(directory)
    shard = index.splits["train"].shards[0]
    with (directory / shard.file).open("ab") as file:
        file.truncate(shard.bytes + 1)
    message = rf"cannot copy {shard.file}, .*{shard.file}: {shard.bytes + 1:,} bytes, not {shard.bytes:,}$"
    with pytest.raises(OSError, match=message):
        ShardCache(CacheFolder(root), str(directory), index).local(shard)
    assert not partial_copies(root)


def test_a_full_disk_leaves_no_partial_copy(directory: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out_of_space(source: str, target: Path, size: int) -> None:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "copy_file", run_out_of_space)
    with pytest.raises(OSError, match=r"data.cache .*No space left"):
        read_copies(directory, root)
    assert not partial_copies(root)
