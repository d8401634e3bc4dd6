"""Shards: equal tokens give equal files, which webdataset reads; the split of a document."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megatape.data.shards.entries import token_dtype
from megatape.data.shards.hashes import split_of
from megatape.data.shards.index import load_index
from megatape.data.shards.writer import SplitWriter
from tests.helpers.data.data_directory import Documents, MakeDirectory, read_all


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
    assert [shard.tokens for shard in split.shards] == [192] * (stream.size // 192) + [stream.size % 192]
    assert {shard.member_tokens for shard in split.shards} == {64}
    assert [-(-shard.tokens // shard.member_tokens) for shard in split.shards[:-1]] == [3] * (len(split.shards) - 1)
    assert split.shards[0].documents == np.count_nonzero(stream[:192] == 2)


def test_equal_tokens_give_equal_files(make_directory: MakeDirectory, documents: Documents) -> None:
    first = make_directory(documents, name="first")
    second = make_directory(documents, name="second")
    names = sorted(path.name for path in first.iterdir())
    assert len(names) > 10
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_webdataset_reads_the_shards(make_directory: MakeDirectory, documents: Documents) -> None:
    webdataset = pytest.importorskip("webdataset")
    directory = make_directory(documents)
    shards = [str(directory / shard.file) for shard in load_index(directory).splits["train"].shards]
    samples = list(webdataset.WebDataset(shards, shardshuffle=False).decode())  # without the checksums, by their name
    assert np.array_equal(np.concatenate([sample["npy"] for sample in samples]), np.concatenate(documents))
    assert [sample["__key__"] for sample in samples[:4]] == [f"train-{number:08d}" for number in range(4)]


def test_ids_outside_the_vocabulary_are_not_written(tmp_path: Path) -> None:
    for ids in ([1, 100, 2], [1, -1, 2], [1, 70_000, 2]):
        with pytest.raises(ValueError, match=r"token ids .* do not fit vocab_size 100 \(uint16\)"):
            SplitWriter(tmp_path, "train", 100, 2).add(np.array(ids), 1)


def words(number: int) -> bytes:
    return f"Document {number}:\n  it is number {number * 7919 % 1000} of the corpus, and no other is. ".encode()


def test_the_split_depends_on_the_text_alone() -> None:
    """By the same hash in every version: with another one, texts held out before would be trained on."""
    splits = [split_of(words(number), 0.1) for number in range(5000)]
    digests = [hashlib.blake2b(words(number), digest_size=8).digest() for number in range(5000)]
    held_out = [int.from_bytes(digest, "little") < 0.1 * 2**64 for digest in digests]
    assert [split == "validation" for split in splits] == held_out
    assert 400 < splits.count("validation") < 600
    assert all(split_of(words(number), 0.2) == "validation" for number in range(5000) if splits[number] == "validation")


def test_tables_need_no_pandas(tmp_path: Path) -> None:
    """`pyarrow.array` imports it, in each worker."""
    code = f"""
import sys
from pathlib import Path
from megatape.data.shards.table_writer import TableWriter
writer = TableWriter(Path({str(tmp_path)!r}), "train")
writer.add(tokens=[2], text_bytes=[5], places=["a:1"], urls=[""], hashes=[2**64 - 1], scores=[{{"rule": 0.5}}])
sys.exit(len(writer.close()) != 1 or "pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
