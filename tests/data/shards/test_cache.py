"""Copies of shards on a node's local disk."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megatape.data.shards import cache
from megatape.data.shards.cache import CacheFolder, ShardCache
from megatape.data.shards.index import load_index
from megatape.data.shards.reader import SplitReader
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.token_dataset import TokenDataset
from tests.helpers.data.data_directory import Documents, MakeDirectory, first_byte, flip, member_of
from tests.helpers.processes.load import scaled


def read_all(directory: Path, root: Path | None) -> np.ndarray:
    return np.concatenate(
        [*SplitReader(directory, load_index(directory), "train", CacheFolder(root) if root else None).members()]
    )


def test_the_same_tokens_from_the_copies(make_directory: MakeDirectory, documents: Documents, tmp_path: Path) -> None:
    directory = make_directory(documents)
    assert np.array_equal(read_all(directory, tmp_path / "cache"), read_all(directory, None))
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_a_planted_link_is_not_followed(make_directory: MakeDirectory, documents: Documents, tmp_path: Path) -> None:
    """Another user of the disk may have planted the link. A killed process may have left a partial copy."""
    directory = make_directory(documents)
    root = tmp_path / "cache"
    victim = tmp_path / "victim"
    assert np.array_equal(read_all(directory, root), read_all(directory, None))
    victim.write_bytes(b"kept")
    copies = sorted(root.rglob("*.tar"))
    for number, copy in enumerate(copies):
        copy.unlink()
        partial = copy.with_name(f"{copy.name}.partial")
        if number == 0:
            partial.symlink_to(victim)
        else:
            partial.write_bytes(b"a part")
    assert np.array_equal(read_all(directory, root), read_all(directory, None))
    assert victim.read_bytes() == b"kept"
    assert sorted(root.rglob("*.tar")) == copies


def test_only_what_is_needed_is_copied_and_read_from_there(
    make_directory: MakeDirectory, documents: Documents, tmp_path: Path
) -> None:
    directory = make_directory(documents)
    root = tmp_path / "cache"
    first = TokenDataset(StoredSplit(directory, "train", CacheFolder(root)), 32).tokens(0)
    (copy,) = root.rglob("*.tar")
    shards = load_index(directory).splits["train"].shards
    assert copy.name == shards[0].file
    flip(directory / copy.name, first_byte(0))  # the original is not read again
    assert np.array_equal(TokenDataset(StoredSplit(directory, "train", CacheFolder(root)), 32).tokens(0), first)


def test_other_data_has_other_copies(make_directory: MakeDirectory, documents: Documents, tmp_path: Path) -> None:
    first = make_directory(documents, name="first")
    second = make_directory(documents[:100][::-1], name="second")
    for directory in (first, second):
        assert np.array_equal(read_all(directory, tmp_path / "cache"), read_all(directory, None))
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_ranks_of_a_node_copy_once(
    make_directory: MakeDirectory, documents: Documents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_directory(documents)
    index = load_index(directory)
    shard = index.splits["train"].shards[0]
    copied = []

    def slow(source: str, target: Path, size: int, copy: Callable[[str, Path], object] = cache.copy_file) -> None:
        copied.append(source)
        time.sleep(0.2)
        copy(source, target)

    monkeypatch.setattr(cache, "copy_file", slow)
    folder = CacheFolder(tmp_path / "cache")
    ranks = [threading.Thread(target=ShardCache(folder, str(directory), index).local, args=(shard,)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=scaled(20))
    assert copied == [f"{directory}/{shard.file}"]


def test_a_corrupted_original_is_not_kept(make_directory: MakeDirectory, documents: Documents, tmp_path: Path) -> None:
    directory = make_directory(documents)
    shard = load_index(directory).splits["train"].shards[0]
    flip(directory / shard.file, first_byte(1))
    with pytest.raises(ValueError, match=f"{directory / shard.file} member 0: corrupted, bytes"):
        read_all(directory, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.tar"))
    assert not list((tmp_path / "cache").rglob("*.partial"))


@pytest.mark.parametrize("opened", [False, True], ids=["before", "while read"])
def test_a_corrupted_copy_is_made_again(
    make_directory: MakeDirectory, documents: Documents, tmp_path: Path, opened: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """The warning names the copy; two ranks that find the same corrupted copy make one new one."""
    directory = make_directory(documents)
    root = tmp_path / "cache"
    expected = read_all(directory, root)
    ranks = [SplitReader(directory, load_index(directory), "train", CacheFolder(root)) for _ in range(2)]
    if opened:
        assert all(np.array_equal(member_of(rank, 1), expected[64:128]) for rank in ranks)
    copy = min(root.rglob("*.tar"))
    flip(copy, first_byte(1))
    assert np.array_equal(member_of(ranks[0], 1), expected[64:128])
    made = copy.stat().st_ino
    assert np.array_equal(member_of(ranks[1], 1), expected[64:128])
    assert copy.stat().st_ino == made
    assert copy.read_bytes() == (directory / copy.name).read_bytes()
    assert f"{copy} member 1: corrupted" in capfd.readouterr().err


def test_a_disk_that_corrupts_copies(
    make_directory: MakeDirectory, documents: Documents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_directory(documents)

    def corrupt(source: str, target: Path, size: int, copy: Callable[[str, Path], object] = cache.copy_file) -> None:
        copy(source, target)
        flip(target, first_byte(0))

    monkeypatch.setattr(cache, "copy_file", corrupt)
    with pytest.raises(ValueError, match=f"{tmp_path}/cache/.* member 0: corrupted, .* twice, though {directory}/.* is right"):
        read_all(directory, tmp_path / "cache")


def test_a_cut_copy_is_made_again(make_directory: MakeDirectory, documents: Documents, tmp_path: Path) -> None:
    directory = make_directory(documents)
    root = tmp_path / "cache"
    expected = read_all(directory, root)
    copy = min(root.rglob("*.tar"))
    copy.write_bytes(copy.read_bytes()[:-1])
    assert np.array_equal(read_all(directory, root), expected)


def test_an_original_of_another_size_is_not_copied(
    make_directory: MakeDirectory, documents: Documents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever length its server announces, no more is written to the disk than the index says."""
    directory = make_directory(documents)
    index = load_index(directory)
    shard = index.splits["train"].shards[0]
    with (directory / shard.file).open("ab") as file:
        file.truncate(shard.bytes + 1)
    with pytest.raises(
        OSError, match=rf"cannot copy {shard.file}, .*{shard.file}: {shard.bytes + 1:,} bytes, not {shard.bytes:,}$"
    ):
        ShardCache(CacheFolder(tmp_path / "cache"), str(directory), index).local(shard)
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_a_cache_that_cannot_be_written(
    make_directory: MakeDirectory, documents: Documents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_directory(documents)

    def full(source: str, target: Path, size: int) -> None:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "copy_file", full)
    with pytest.raises(OSError, match=r"data.cache .*No space left"):
        read_all(directory, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.partial"))
