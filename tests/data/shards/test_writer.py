"""Writing shards: equal tokens give equal files, webdataset reads them, and the split of a document follows from its text."""

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

NUM_TEXTS = 5000


@pytest.mark.parametrize("vocab_size, dtype", [(100, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_written_tokens_come_back(make_directory: MakeDirectory, documents: Documents, vocab_size: int, dtype: str) -> None:
    documents = [*documents, np.array([1, vocab_size - 1, 2])]
    directory = make_directory(documents, vocab_size)
    ids = read_all(directory)
    assert load_index(directory).dtype == dtype
    assert token_dtype(vocab_size) == dtype
    assert ids.dtype == dtype
    assert np.array_equal(ids, np.concatenate(documents))


def test_the_index_counts_documents_tokens_and_bytes(make_directory: MakeDirectory, documents: Documents) -> None:
    split = load_index(make_directory(documents)).splits["train"]
    stream = np.concatenate(documents)
    _, counts = np.unique(stream, return_counts=True)
    share = counts / stream.size
    assert split.documents == len(documents)
    assert split.tokens == stream.size
    assert split.text_bytes == 3 * stream.size
    assert split.unigram_entropy == pytest.approx(-(share * np.log(share)).sum())


def test_shards_have_three_members_of_64_tokens(make_directory: MakeDirectory, documents: Documents) -> None:
    shards = load_index(make_directory(documents)).splits["train"].shards
    stream = np.concatenate(documents)
    assert [shard.tokens for shard in shards] == [192] * (stream.size // 192) + [stream.size % 192]
    assert {shard.member_tokens for shard in shards} == {64}
    assert shards[0].documents == np.count_nonzero(stream[:192] == 2)


def test_equal_tokens_give_equal_files(make_directory: MakeDirectory, documents: Documents) -> None:
    first = make_directory(documents, name="first")
    second = make_directory(documents, name="second")
    names = sorted(path.name for path in first.iterdir())
    assert len(names) > 10
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_webdataset_reads_the_shards(make_directory: MakeDirectory, documents: Documents) -> None:
    """The checksums have names that webdataset skips."""
    webdataset = pytest.importorskip("webdataset")
    directory = make_directory(documents)
    shards = [str(directory / shard.file) for shard in load_index(directory).splits["train"].shards]
    samples = list(webdataset.WebDataset(shards, shardshuffle=False).decode())
    assert np.array_equal(np.concatenate([sample["npy"] for sample in samples]), np.concatenate(documents))
    assert [sample["__key__"] for sample in samples[:4]] == [f"train-{number:08d}" for number in range(4)]


@pytest.mark.parametrize("token_id", [100, -1, 70_000])
def test_ids_outside_the_vocabulary_are_not_written(tmp_path: Path, token_id: int) -> None:
    writer = SplitWriter(tmp_path, "train", 100, 2)
    with pytest.raises(ValueError, match=r"token ids .* do not fit vocab_size 100 \(uint16\)"):
        writer.add(np.array([1, token_id, 2]), 1)


@pytest.fixture(scope="module")
def texts() -> list[bytes]:
    texts = []
    for number in range(NUM_TEXTS):
        text = f"Document {number}:\n  it is number {number * 7919 % 1000} of the corpus, and no other is. "
        texts.append(text.encode())
    return texts


def test_the_split_is_pinned_to_a_hash_of_the_text(texts: list[bytes]) -> None:
    """With another hash in a later version, texts held out before would be trained on."""
    splits = [split_of(text, 0.1) for text in texts]
    for text, split in zip(texts, splits, strict=True):
        digest = hashlib.blake2b(text, digest_size=8).digest()
        is_held_out = int.from_bytes(digest, "little") < 0.1 * 2**64
        assert (split == "validation") == is_held_out
    assert 400 < splits.count("validation") < 600


def test_a_larger_validation_share_keeps_the_texts_held_out_before(texts: list[bytes]) -> None:
    held_out = [text for text in texts if split_of(text, 0.1) == "validation"]
    assert {split_of(text, 0.2) for text in held_out} == {"validation"}


def test_tables_need_no_pandas(tmp_path: Path) -> None:
    """`pyarrow.array` would import pandas, in each worker."""
    code = f"""
import sys
from pathlib import Path
from megatape.data.shards.tables.table_writer import TableWriter, table_rows
writer = TableWriter(Path({str(tmp_path)!r}), "train")
rows = table_rows(tokens=[2], text_bytes=[5], locations=["a:1"], urls=[""], hashes=[2**64 - 1], scores=[{{"rule": 0.5}}])
writer.add(rows)
sys.exit(len(writer.close()) != 1 or "pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
