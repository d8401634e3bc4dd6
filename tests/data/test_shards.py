"""Writing and reading data directories, and every way one can be corrupted."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape import files
from megatape.data.shards.index import load_index, token_dtype
from megatape.data.shards.reader import ShardFile, SplitReader
from megatape.data.shards.writer import SplitWriter
from tests.helpers.data_directory import Documents, MakeDirectory

ANSWERS = {"file": "a.npy", "sha256": "", "examples": 1, "tokens": 1, "longest": 2, "unigram_entropy": 0.0}


def read_all(directory: Path, split: str = "train") -> np.ndarray:
    reader = SplitReader(directory, load_index(directory), split)
    return np.concatenate([reader.member(number) for number in range(len(reader))])


def edit_index(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "index.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("vocab_size, dtype", [(100, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_written_tokens_come_back(make_directory: MakeDirectory, documents: Documents, vocab_size: int, dtype: str) -> None:
    documents = [*documents, np.array([1, vocab_size - 1, 2])]
    directory = make_directory(documents, vocab_size)
    assert load_index(directory).dtype == dtype
    ids = read_all(directory)
    assert ids.dtype == token_dtype(vocab_size) == dtype
    assert np.array_equal(ids, np.concatenate(documents))


def test_index_counts(make_directory: MakeDirectory, documents: Documents) -> None:
    split = load_index(make_directory(documents)).splits["train"]
    stream = np.concatenate(documents)
    share = np.unique(stream, return_counts=True)[1] / stream.size
    assert (split.documents, split.tokens, split.text_bytes) == (len(documents), stream.size, 3 * stream.size)
    assert split.unigram_entropy == pytest.approx(-(share * np.log(share)).sum())
    members = [member for shard in split.shards for member in shard.members]
    assert [member.tokens for member in members] == [64] * (stream.size // 64) + [stream.size % 64]
    assert [len(shard.members) for shard in split.shards[:-1]] == [3] * (len(split.shards) - 1)
    assert members[0].documents == np.count_nonzero(stream[:64] == 2)


def test_equal_tokens_give_equal_files(make_directory: MakeDirectory, documents: Documents) -> None:
    first, second = make_directory(documents, name="first"), make_directory(documents, name="second")
    names = sorted(path.name for path in first.iterdir())
    assert len(names) > 10
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_webdataset_reads_the_shards(make_directory: MakeDirectory, documents: Documents) -> None:
    webdataset = pytest.importorskip("webdataset")
    directory = make_directory(documents)
    shards = [str(directory / shard.file) for shard in load_index(directory).splits["train"].shards]
    samples = list(webdataset.WebDataset(shards, shardshuffle=False).decode())
    assert np.array_equal(np.concatenate([sample["npy"] for sample in samples]), np.concatenate(documents))
    assert [sample["__key__"] for sample in samples[:4]] == [f"train-{number:08d}" for number in range(4)]


def test_ids_outside_the_vocabulary_are_not_written(tmp_path: Path) -> None:
    for ids in ([1, 100, 2], [1, -1, 2], [1, 70_000, 2]):
        with pytest.raises(ValueError, match=r"token ids .* do not fit vocab_size 100 \(uint16\)"):
            SplitWriter(tmp_path, "train", 100, 2).add(np.array(ids), 1)


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


def test_no_index(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="index.json: not found: .* make one with `megatape prepare corpus`"):
        load_index(tmp_path)


@pytest.mark.parametrize(
    "edit, message",
    [
        (
            lambda content: content.update(version=4),
            r"format and version are \('megatape-shards', 4\), .* \('megatape-shards', 3\)",
        ),
        (lambda content: content.update(format="other"), r"format and version are \('other', 1\)"),
        (lambda content: content.pop("tokenizer"), "corrupted .*tokenizer"),
        (lambda content: content["tokenizer"].update(companions={"../x": ""}), "'../x' is not a plain file name"),
        (lambda content: content["splits"].pop("validation"), "corrupted .*validation"),
        (lambda content: content.update(answers={"train": ANSWERS}), "answers has train, not every split"),
        (
            lambda content: content.update(answers=dict.fromkeys(("train", "validation"), ANSWERS | {"file": "/x"})),
            "'/x' is not a plain file name",
        ),
        (lambda content: content.update(dtype="uint32"), "dtype is uint32, vocab_size 100 needs uint16"),
        (lambda content: content["splits"]["train"].update(tokens=1), "tokens is 1, its members hold"),
        (lambda content: content["splits"]["train"]["shards"][0].update(file="../x.tar"), "not a plain file name"),
        (lambda content: content["splits"]["train"]["shards"][0].update(file=".."), "'..' is not a plain file name"),
        (lambda content: content["tokenizer"].update(file=".."), "'..' is not a plain file name"),
        (lambda content: content["splits"]["train"]["shards"][0].update(bytes=10**30), r"splits.train.shards.0.bytes: .* less"),
        (lambda content: content["tokenizer"].update(vocab_size=-1), "tokenizer.vocab_size: .* greater"),
        (lambda content: content.update(answers=""), "answers: .* dictionary"),
        (
            lambda content: content["splits"]["train"]["shards"][0]["members"][1].update(offset=10**9),
            "does not fit its shard",
        ),
        (lambda content: content["splits"]["train"]["shards"][0]["members"][1].pop("sha256"), "corrupted .*sha256"),
    ],
)
def test_damaged_index(
    make_directory: MakeDirectory, documents: Documents, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    directory = make_directory(documents)
    edit_index(directory, edit)
    with pytest.raises(ValueError, match=f"index.json: .*{message}"):
        load_index(directory)


def test_index_is_not_json(make_directory: MakeDirectory, documents: Documents) -> None:
    directory = make_directory(documents)
    path = directory / "index.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="index.json: not JSON"):
        load_index(directory)
