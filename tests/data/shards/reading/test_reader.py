"""Reading shards: which bytes a read takes, and every way that a shard can be corrupted."""

import errno
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from megatape.data.shards.index import load_index
from megatape.data.shards.reading.reader import SplitReader
from megatape.data.shards.reading.shard_file import MAX_DESCRIPTORS, ShardFile
from megatape.utils.files import retries
from tests.helpers.data.data_directory import (
    Documents,
    MakeDirectory,
    first_byte,
    flip,
    make_earlier,
    member_of,
    read_all,
    write_ids,
)
from tests.helpers.data.json_edits import set_file_entry

EARLIER = pytest.mark.parametrize("earlier", [False, True], ids=["version 4", "version 1"])


class Read(NamedTuple):
    """A read of a shard file."""

    offset: int
    size: int


def open_train(directory: Path) -> SplitReader:
    return SplitReader(directory, load_index(directory), "train")


def record_reads(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """Record every read of a shard from now on."""
    reads: list[Read] = []
    read = ShardFile.read

    def record_and_read(file: ShardFile, offset: int, size: int) -> bytes:
        reads.append(Read(offset, size))
        return read(file, offset, size)

    monkeypatch.setattr(ShardFile, "read", record_and_read)
    return reads


@EARLIER
def test_ids_outside_the_vocabulary_are_not_read(directory: Path, earlier: bool) -> None:
    if earlier:
        make_earlier(directory)
    set_file_entry(directory / "index.json", "tokenizer.vocab_size", 90)
    with pytest.raises(ValueError, match=r"train-000000.tar member 0: corrupted, token id 9\d, vocab_size is 90"):
        read_all(directory)


def test_a_missing_shard_is_reported(directory: Path) -> None:
    """The other split can still be read."""
    (directory / "train-000001.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"train-000001.tar: shard not found, .* copy the shard again"):
        read_all(directory)
    read_all(directory, "validation")


def test_a_truncated_shard_is_refused(directory: Path) -> None:
    path = directory / "train-000001.tar"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2])
    with pytest.raises(ValueError, match=rf"train-000001.tar: shard of {size // 2} bytes, the index says {size}"):
        read_all(directory)


def test_a_shard_truncated_after_the_split_was_opened_is_refused(directory: Path) -> None:
    reader = open_train(directory)
    (directory / "train-000001.tar").write_bytes(b"short")
    member_of(reader, 0)
    with pytest.raises(ValueError, match="train-000001.tar: shard of 5 bytes"):
        member_of(reader, 3)


@pytest.mark.parametrize("offset", [-20, 127], ids=["header", "tokens"])
def test_a_flipped_byte_is_refused_each_time(directory: Path, offset: int) -> None:
    """The error names shard, member and bytes."""
    reader = open_train(directory)
    flip(directory / "train-000001.tar", first_byte(2) + offset)
    assert member_of(reader, 2).size == 64
    for _ in range(2):
        with pytest.raises(
            ValueError, match="train-000001.tar member 2: corrupted, bytes 0 to 3,071 do not have their checksums"
        ):
            member_of(reader, 5)


def test_a_flipped_checksum_is_refused(directory: Path) -> None:
    """The tokens are right, but without a checksum the next fault would go undetected."""
    flip(directory / "train-000001.tar", 3 * 1024 + 512)
    with pytest.raises(ValueError, match="train-000001.tar member 0: corrupted, bytes 0 to"):
        read_all(directory)


def test_a_flipped_byte_of_an_earlier_version_is_refused_each_time(directory: Path) -> None:
    """A member that failed verification is not cached."""
    make_earlier(directory)
    index = load_index(directory)
    reader = SplitReader(directory, index, "train")
    flip(directory / "train-000001.tar", first_byte(2) - 20)
    assert member_of(reader, 4).size == 64
    assert index.earlier is not None
    expected_hash = index.earlier.member_hashes["train-000001.tar"][2]
    for _ in range(2):
        with pytest.raises(ValueError, match=f"member 2: corrupted, .* index says {expected_hash}"):
            member_of(reader, 5)


class ChunkCase(NamedTuple):
    """A range of token ids, and the range of chunks that hold them."""

    begin: int
    end: int
    first_chunk: int
    last_chunk: int


CHUNK_CASES = [
    ChunkCase(begin=0, end=1, first_chunk=0, last_chunk=1),
    ChunkCase(begin=0, end=1728, first_chunk=0, last_chunk=1),
    ChunkCase(begin=1727, end=1729, first_chunk=0, last_chunk=2),
    ChunkCase(begin=5311, end=5312, first_chunk=2, last_chunk=3),
]


def test_a_read_takes_only_its_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks have 4 KiB and a checksum of 8 bytes each. Faults in other chunks do not matter."""
    directory = write_ids(tmp_path / "data", [np.arange(10_000) % 97 + 3], member_tokens=4096, members=2)
    reader = open_train(directory)
    stream = read_all(directory)
    reads = record_reads(monkeypatch)
    flip(directory / "train-000000.tar", 3 * 4096)
    checksummed_bytes = 2 * (512 + 128 + 2 * 4096 + 384)
    first_checksum = checksummed_bytes + 512

    for case in CHUNK_CASES:
        reads.clear()
        assert np.array_equal(reader.read(0, case.begin, case.end), stream[case.begin : case.end])
        first_byte_of_chunks = 4096 * case.first_chunk
        last_byte_of_chunks = min(4096 * case.last_chunk, checksummed_bytes)
        num_chunks = case.last_chunk - case.first_chunk
        assert reads == [
            Read(first_byte_of_chunks, last_byte_of_chunks - first_byte_of_chunks),
            Read(first_checksum + 8 * case.first_chunk, 8 * num_chunks),
        ]
    with pytest.raises(ValueError, match="member 1: corrupted, bytes 12,288 to 16,383"):
        reader.read(0, 5312, 5313)


def test_an_intact_shard_of_other_data_is_refused(directory: Path, make_directory: MakeDirectory, documents: Documents) -> None:
    """Checksums alone would accept a shard from another preparation."""
    other = make_directory([np.where(ids == 50, 51, ids) for ids in documents], name="other")
    reader = open_train(directory)
    member_of(reader, 0)
    (directory / "train-000000.tar").write_bytes((other / "train-000000.tar").read_bytes())
    with pytest.raises(ValueError, match="train-000000.tar member 0: corrupted, bytes 0 to"):
        member_of(reader, 0)


@EARLIER
def test_a_shard_changed_while_it_is_open_is_refused(directory: Path, earlier: bool) -> None:
    """The shard is truncated, restored, and overwritten with its times set back.

    The error names the member, where a memory mapping would die of SIGBUS or return other tokens.
    """
    member_bytes = 3 * 1024
    if earlier:
        make_earlier(directory)
        member_bytes = 128 + 128
    path = directory / "train-000000.tar"
    content = path.read_bytes()
    reader = open_train(directory)
    expected = member_of(reader, 1)

    path.open("r+b").truncate(first_byte(2) - 118)
    with pytest.raises(ValueError, match=rf"train-000000.tar member 2: truncated, \d+ of its {member_bytes} bytes"):
        member_of(reader, 2, 0, 1)

    path.write_bytes(content)
    assert np.array_equal(member_of(reader, 1), expected)

    times = path.stat()
    flip(path, first_byte(2))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ValueError, match="train-000000.tar member 2: corrupted"):
        member_of(reader, 2, 0, 1)


def test_members_of_an_earlier_version_are_cached(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash covers a member, so hashing it for each sample would take most of the time."""
    make_earlier(directory)
    reader = SplitReader(directory, load_index(directory), "train", member_cache_size=2)
    reads = record_reads(monkeypatch)
    num_reads = []
    for member in (0, 1, 0, 2, 0, 1):
        member_of(reader, member)
        num_reads.append(len(reads))
    assert num_reads == [1, 2, 2, 3, 3, 4]


def test_an_open_shard_is_read_on_after_its_folder_is_removed(directory: Path) -> None:
    """A shard that was not open is reported as missing."""
    reader = open_train(directory)
    expected = member_of(reader, 0)
    shutil.rmtree(directory)
    assert np.array_equal(member_of(reader, 0), expected)
    assert member_of(reader, 1).size == 64
    with pytest.raises(FileNotFoundError, match=r"train-000001.tar: shard not found"):
        member_of(reader, 3)


def test_a_short_disturbance_is_waited_out(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale handle of NFS works again only after opening the file again."""
    monkeypatch.setattr(retries, "WAITS", (0.0,))
    reader = open_train(directory)
    expected = member_of(reader, 0)
    read = ShardFile.read
    stale_files: list[ShardFile] = []

    def fail_on_first_file(file: ShardFile, offset: int, size: int) -> bytes:
        if not stale_files or file in stale_files:
            stale_files.append(file)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(file, offset, size)

    monkeypatch.setattr(ShardFile, "read", fail_on_first_file)
    assert np.array_equal(member_of(reader, 0), expected)
    assert len(stale_files) == 1


def test_more_shards_than_may_be_open_are_read(directory: Path, documents: Documents) -> None:
    index = load_index(directory)
    reader = SplitReader(directory, index, "train", max_open=2)
    shards = index.splits["train"].shards
    tokens = {}
    for number in np.random.default_rng(1).permutation(len(shards)):
        tokens[int(number)] = reader.read(number, 0, shards[number].tokens)
    assert 1 <= len(reader._open) <= 2
    in_order = [tokens[number] for number in range(len(shards))]
    assert np.array_equal(np.concatenate(in_order), np.concatenate(documents))


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    """With the usual limit of 1,024, nearly every sample of a corpus of 20,000 shards opened a file."""
    code = """
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
_, hard = getrlimit(RLIMIT_NOFILE)
setrlimit(RLIMIT_NOFILE, (hard // 2, hard))
from megatape.data.shards.reading.shard_file import max_open_shards
print(hard, max_open_shards(), getrlimit(RLIMIT_NOFILE)[0])
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    hard, max_open_shards, soft = map(int, printed.split())
    assert soft == min(hard, MAX_DESCRIPTORS)
    assert max_open_shards == soft // 2


def test_a_shard_is_opened_and_its_status_read_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are read in any order, more than the soft limit lets a process open."""
    calls: Counter[str] = Counter()
    index = load_index(directory)
    reader = SplitReader(directory, index, "train")
    num_shards = len(index.splits["train"].shards)

    def count_and_call(name: str, function: Callable[..., Any], *args: Any) -> Any:
        calls[name] += 1
        return function(*args)

    for name in ("open", "stat", "fstat"):
        monkeypatch.setattr(os, name, partial(count_and_call, name, getattr(os, name)))
    for epoch in range(3):
        for number in np.random.default_rng(epoch).permutation(num_shards):
            reader.read(int(number), 0, 16)
    assert calls == {"open": num_shards, "stat": num_shards}
