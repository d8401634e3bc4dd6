"""Reading shards, and every way one can be corrupted."""

import errno
import os
import shutil

import numpy as np
import pytest

from megatape import files
from megatape.data.shards.index import load_index
from megatape.data.shards.reader import ShardFile, SplitReader
from tests.helpers.data_directory import Documents, MakeDirectory, edit_index, read_all


def test_ids_outside_the_vocabulary_are_not_read(make_directory: MakeDirectory, documents: Documents) -> None:
    directory = make_directory(documents)
    edit_index(directory, lambda content: content["tokenizer"].update(vocab_size=90))
    with pytest.raises(ValueError, match=r"train-000000.tar member 0: corrupted, token id 9\d, vocab_size is 90"):
        read_all(directory)


def test_missing_shard(make_directory: MakeDirectory, documents: Documents) -> None:
    directory = make_directory(documents)
    (directory / "train-000001.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"train-000001.tar: shard not found, .* copy the shard again"):
        read_all(directory)
    read_all(directory, "validation")


def test_truncated_shard(make_directory: MakeDirectory, documents: Documents) -> None:
    path = make_directory(documents) / "train-000001.tar"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2])
    with pytest.raises(ValueError, match=rf"train-000001.tar: shard of {size // 2} bytes, the index says {size}"):
        read_all(path.parent)


def test_shard_truncated_after_opening(make_directory: MakeDirectory, documents: Documents) -> None:
    directory = make_directory(documents)
    reader = SplitReader(directory, load_index(directory), "train")
    (directory / "train-000001.tar").write_bytes(b"short")
    reader.member(0)
    with pytest.raises(ValueError, match="train-000001.tar: shard of 5 bytes"):
        reader.member(3)


@pytest.mark.parametrize("place", ["header", "tokens"])
def test_flipped_byte(make_directory: MakeDirectory, documents: Documents, place: str) -> None:
    directory = make_directory(documents)
    member = load_index(directory).splits["train"].shards[1].members[2]
    path = directory / "train-000001.tar"
    content = bytearray(path.read_bytes())
    content[member.offset + (20 if place == "header" else member.bytes - 1)] ^= 1
    path.write_bytes(content)
    reader = SplitReader(directory, load_index(directory), "train")
    assert reader.member(4).size == 64
    for _ in range(2):  # a member that failed stays unverified
        with pytest.raises(ValueError, match=f"train-000001.tar member 2: corrupted, .* index says {member.sha256}"):
            reader.member(5)


def test_a_member_is_verified_once(
    make_directory: MakeDirectory, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_directory(documents)
    reader = SplitReader(directory, load_index(directory), "train")
    first = reader.member(0).copy()
    monkeypatch.setattr("megatape.data.shards.reader.hashlib", None)
    assert np.array_equal(reader.member(0), first)
    with pytest.raises(AttributeError):
        reader.member(1)


def test_shard_changed_while_it_is_open(make_directory: MakeDirectory, documents: Documents) -> None:
    """Truncated, or overwritten with its times set back: an error that names the member, where a mapping would die of SIGBUS
    or give other tokens. Members that are still right, or right again, are read."""
    directory = make_directory(documents)
    members = load_index(directory).splits["train"].shards[0].members
    path = directory / "train-000000.tar"
    content = path.read_bytes()
    reader = SplitReader(directory, load_index(directory), "train")
    expected = [reader.member(number) for number in range(3)]

    path.open("r+b").truncate(members[2].offset + 10)
    assert np.array_equal(reader.member(1, 3, 9), expected[1][3:9])
    with pytest.raises(ValueError, match=f"train-000000.tar member 2: truncated, 10 of its {members[2].bytes} bytes"):
        reader.member(2, 0, 1)

    path.write_bytes(content)
    assert np.array_equal(reader.member(2), expected[2])
    times = path.stat()
    altered = bytearray(content)
    altered[members[2].offset + members[2].bytes - 1] ^= 1
    path.write_bytes(altered)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ValueError, match=f"train-000000.tar member 2: corrupted, .* index says {members[2].sha256}"):
        reader.member(2, 0, 1)


def test_shards_that_vanish(make_directory: MakeDirectory, documents: Documents) -> None:
    """An open one is read on, another one is an error that names it."""
    directory = make_directory(documents)
    reader = SplitReader(directory, load_index(directory), "train")
    first = reader.member(0)
    shutil.rmtree(directory)
    assert np.array_equal(reader.member(0), first) and reader.member(1).size == 64
    with pytest.raises(FileNotFoundError, match=r"train-000001.tar: shard not found"):
        reader.member(3)


def test_a_short_disturbance_is_waited_out(
    make_directory: MakeDirectory, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is opened again, as a stale handle of NFS needs it."""
    monkeypatch.setattr(files, "WAITS", (0.0,))
    directory = make_directory(documents)
    reader = SplitReader(directory, load_index(directory), "train")
    expected = reader.member(0)
    read = ShardFile.read
    broken: list[ShardFile] = []

    def stale(file: ShardFile, offset: int, size: int) -> bytes:
        if not broken or file in broken:
            broken.append(file)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(file, offset, size)

    monkeypatch.setattr(ShardFile, "read", stale)
    assert np.array_equal(reader.member(0), expected) and len(broken) == 1


def test_more_shards_than_may_be_open(
    make_directory: MakeDirectory, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatape.data.shards.reader.MAX_OPEN_SHARDS", 2)
    directory = make_directory(documents)
    reader = SplitReader(directory, load_index(directory), "train")
    stream = np.concatenate(documents)
    order = np.random.default_rng(1).permutation(len(reader))
    members = {number: reader.member(number) for number in order}
    assert len(reader._open) == 2
    assert np.array_equal(np.concatenate([members[number] for number in range(len(reader))]), stream)
