"""Reading shards: what a read takes, and every way that one can be corrupted."""

import errno
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.data.shards.entries import Index
from megatape.data.shards.index import load_index
from megatape.data.shards.reader import SplitReader
from megatape.data.shards.shard_file import MAX_DESCRIPTORS, ShardFile
from megatape.utils import retries
from tests.helpers.data.data_directory import (
    Documents,
    MakeDirectory,
    edit_index,
    first_byte,
    flip,
    make_earlier,
    member_of,
    read_all,
    write_ids,
)

EARLIER = pytest.mark.parametrize("earlier", [False, True], ids=["version 4", "version 1"])


def opened(directory: Path, earlier: bool = False) -> tuple[SplitReader, Index]:
    if earlier:
        make_earlier(directory)
    index = load_index(directory)
    return SplitReader(directory, index, "train"), index


def record_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Offset and size of every read of a shard from now on."""
    taken: list[tuple[int, int]] = []
    read = ShardFile.read

    def recorded(file: ShardFile, offset: int, size: int) -> bytes:
        taken.append((offset, size))
        return read(file, offset, size)

    monkeypatch.setattr(ShardFile, "read", recorded)
    return taken


@EARLIER
def test_ids_outside_the_vocabulary_are_not_read(make_directory: MakeDirectory, documents: Documents, earlier: bool) -> None:
    directory = make_directory(documents)
    if earlier:
        make_earlier(directory)
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
    reader, _ = opened(directory)
    (directory / "train-000001.tar").write_bytes(b"short")
    member_of(reader, 0)
    with pytest.raises(ValueError, match="train-000001.tar: shard of 5 bytes"):
        member_of(reader, 3)


@pytest.mark.parametrize("place", ["header", "tokens"])
def test_flipped_byte(make_directory: MakeDirectory, documents: Documents, place: str) -> None:
    """Wherever it is, the error names shard, member and bytes; and again when it is read again."""
    directory = make_directory(documents)
    reader, _ = opened(directory)
    flip(directory / "train-000001.tar", first_byte(2) + (-20 if place == "header" else 127))
    assert member_of(reader, 2).size == 64
    told = "train-000001.tar member 2: corrupted, bytes 0 to 3,071 do not have their checksums"
    for _ in range(2):
        with pytest.raises(ValueError, match=told):
            member_of(reader, 5)


def test_flipped_checksum(make_directory: MakeDirectory, documents: Documents) -> None:
    """The tokens are right, but the next fault would go unseen."""
    directory = make_directory(documents)
    flip(directory / "train-000001.tar", 3 * 1024 + 512)
    with pytest.raises(ValueError, match="train-000001.tar member 0: corrupted, bytes 0 to"):
        read_all(directory)


def test_flipped_byte_of_an_earlier_version(make_directory: MakeDirectory, documents: Documents) -> None:
    directory = make_directory(documents)
    reader, index = opened(directory, earlier=True)
    flip(directory / "train-000001.tar", first_byte(2) - 20)
    assert member_of(reader, 4).size == 64
    assert index.earlier is not None
    for _ in range(2):  # a member that failed is not kept
        with pytest.raises(
            ValueError, match=f"member 2: corrupted, .* index says {index.earlier.member_hashes['train-000001.tar'][2]}"
        ):
            member_of(reader, 5)


def test_a_read_takes_its_chunks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 4 KiB with a checksum of 8 bytes each, of the ids that were asked for; faults elsewhere do not matter."""
    directory = write_ids(tmp_path / "data", [np.arange(10_000) % 97 + 3], member_tokens=4096, members=2)
    reader, _ = opened(directory)
    stream = read_all(directory)
    taken = record_reads(monkeypatch)
    flip(directory / "train-000000.tar", 3 * 4096)
    covered = 2 * (512 + 128 + 2 * 4096 + 384)
    for begin, end, chunks in ((0, 1, (0, 1)), (0, 1728, (0, 1)), (1727, 1729, (0, 2)), (5311, 5312, (2, 3))):
        taken.clear()
        assert np.array_equal(reader.read(0, begin, end), stream[begin:end])
        size = min(4096 * chunks[1], covered) - 4096 * chunks[0]
        assert taken == [(4096 * chunks[0], size), (covered + 512 + 8 * chunks[0], 8 * (chunks[1] - chunks[0]))]
    with pytest.raises(ValueError, match="member 1: corrupted, bytes 12,288 to 16,383"):
        reader.read(0, 5312, 5313)


def test_another_shard_that_is_right_in_itself(make_directory: MakeDirectory, documents: Documents) -> None:
    """Checksums alone would take a shard of another preparation for this one's."""
    directory = make_directory(documents)
    other = make_directory([np.where(ids == 50, 51, ids) for ids in documents], name="other")
    reader, _ = opened(directory)
    member_of(reader, 0)
    (directory / "train-000000.tar").write_bytes((other / "train-000000.tar").read_bytes())
    with pytest.raises(ValueError, match="train-000000.tar member 0: corrupted, bytes 0 to"):
        member_of(reader, 0)


@EARLIER
def test_shard_changed_while_it_is_open(make_directory: MakeDirectory, documents: Documents, earlier: bool) -> None:
    """Truncated, or overwritten with its times set back: an error that names the member, where a mapping would die of SIGBUS
    or give other tokens. What is right again is read."""
    directory = make_directory(documents)
    path = directory / "train-000000.tar"
    content = path.read_bytes()
    reader, _ = opened(directory, earlier)
    expected = member_of(reader, 1)

    path.open("r+b").truncate(first_byte(2) - 118)
    size = 128 + 128 if earlier else 3 * 1024
    with pytest.raises(ValueError, match=rf"train-000000.tar member 2: truncated, \d+ of its {size} bytes"):
        member_of(reader, 2, 0, 1)

    path.write_bytes(content)
    assert np.array_equal(member_of(reader, 1), expected)
    times = path.stat()
    flip(path, first_byte(2))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ValueError, match="train-000000.tar member 2: corrupted"):
        member_of(reader, 2, 0, 1)


def test_members_of_an_earlier_version_are_kept(
    make_directory: MakeDirectory, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is hashed once while few are used: hashing a member for each sample would take most of the time."""
    directory = make_directory(documents)
    make_earlier(directory)
    reader = SplitReader(directory, load_index(directory), "train", member_cache_size=2)
    taken = record_reads(monkeypatch)
    for number, reads in ((0, 1), (1, 2), (0, 2), (2, 3), (0, 3), (1, 4)):
        member_of(reader, number)
        assert len(taken) == reads


def test_shards_that_vanish(make_directory: MakeDirectory, documents: Documents) -> None:
    """An open one is read on, another one is an error that names it."""
    directory = make_directory(documents)
    reader, _ = opened(directory)
    first = member_of(reader, 0)
    shutil.rmtree(directory)
    assert np.array_equal(member_of(reader, 0), first)
    assert member_of(reader, 1).size == 64
    with pytest.raises(FileNotFoundError, match=r"train-000001.tar: shard not found"):
        member_of(reader, 3)


def test_a_short_disturbance_is_waited_out(
    make_directory: MakeDirectory, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is opened again, as a stale handle of NFS needs it."""
    monkeypatch.setattr(retries, "WAITS", (0.0,))
    reader, _ = opened(make_directory(documents))
    expected = member_of(reader, 0)
    read = ShardFile.read
    broken: list[ShardFile] = []

    def stale(file: ShardFile, offset: int, size: int) -> bytes:
        if not broken or file in broken:
            broken.append(file)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(file, offset, size)

    monkeypatch.setattr(ShardFile, "read", stale)
    assert np.array_equal(member_of(reader, 0), expected)
    assert len(broken) == 1


def test_more_shards_than_may_be_open(make_directory: MakeDirectory, documents: Documents) -> None:
    directory = make_directory(documents)
    index = load_index(directory)
    reader = SplitReader(directory, index, "train", max_open=2)
    stream = np.concatenate(documents)
    shards = index.splits["train"].shards
    parts = {
        number: reader.read(number, 0, shards[number].tokens) for number in np.random.default_rng(1).permutation(len(shards))
    }
    assert 1 <= len(reader._open) <= 2
    assert np.array_equal(np.concatenate([parts[number] for number in range(len(shards))]), stream)


def test_the_soft_limit_of_open_files_is_raised() -> None:
    """To the hard one. With the usual 1,024 nearly every sample of a corpus of 20,000 shards opened a file."""
    code = (
        "from resource import RLIMIT_NOFILE as N, getrlimit, setrlimit; "
        "hard = getrlimit(N)[1]; setrlimit(N, (hard // 2, hard)); "
        "from megatape.data.shards.shard_file import max_open_shards; print(hard, max_open_shards(), getrlimit(N)[0])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    hard, shards, soft = map(int, printed.split())
    assert (shards, soft) == (min(hard, MAX_DESCRIPTORS) // 2, min(hard, MAX_DESCRIPTORS))


def test_a_shard_is_opened_and_asked_for_its_state_once(
    make_directory: MakeDirectory, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More shards than the soft limit lets a process open, in any order: later reads open nothing and ask for no state."""
    calls: Counter[str] = Counter()
    reader, index = opened(make_directory(documents))
    num_shards = len(index.splits["train"].shards)

    def counted(name: str, found: Callable[..., Any], *given: Any) -> Any:
        calls[name] += 1
        return found(*given)

    for name in ("open", "stat", "fstat"):
        monkeypatch.setattr(os, name, partial(counted, name, getattr(os, name)))
    for epoch in range(3):
        for number in np.random.default_rng(epoch).permutation(num_shards):
            reader.read(int(number), 0, 16)
    assert calls == {"open": num_shards, "stat": num_shards}
