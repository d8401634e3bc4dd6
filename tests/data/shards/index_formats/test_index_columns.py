"""Columns of a large index: the same shards, tables and fingerprints as the index, unless the index or the columns changed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megatape.data.document_entries import INDEX_FILE, DocumentTable
from megatape.data.shards.entries import Index, Shard, Split, TokenizerEntry
from megatape.data.shards.index import load_index, open_index, save_index
from megatape.data.shards.index_formats.index_columns import INDEX_COLUMNS, MIN_SHARDS, StoredIndex, shard_numbers
from tests.helpers.data.data_directory import flip


def index_of(num_shards: int) -> Index:
    """Return an index with shards of different names, sizes and hashes."""
    shards = []
    for number in range(num_shards):
        tokens = 1 + number % 7
        shards.append(Shard(f"t{number}.tar", 4096 + number, tokens, number, 8, f"{number:064x}"))
    tokens = sum(shard.tokens for shard in shards)
    held_out = Shard("held out.tar", 4096, 5, 1, 8, "f" * 64)
    splits = {
        "train": Split(9, tokens, 8, 7.5, shards),
        "validation": Split(1, 5, 8, 7.5, [held_out]),
    }
    tables = {"train": [DocumentTable("a.parquet", "e" * 64, 9, tokens)], "validation": []}
    tokenizer = TokenizerEntry("tokenizer.json", "d" * 64, 100, 1, 2)
    return Index(tokenizer, "uint16", {"kind": "text"}, 0.1, splits, document_tables=tables)


@pytest.fixture(scope="module")
def index() -> Index:
    return index_of(MIN_SHARDS + 3)


@pytest.fixture
def directory(index: Index, tmp_path: Path) -> Path:
    save_index(index, tmp_path)
    return tmp_path


def test_shards_on_disk_are_those_of_the_index(index: Index, directory: Path) -> None:
    stored = open_index(directory)

    assert isinstance(stored, StoredIndex)
    for name, split in index.splits.items():
        stored_split = stored.splits[name]
        assert list(stored_split.shards) == split.shards
        assert stored_split.shards[-1] == split.shards[-1]
        assert stored_split.shards[:2] == split.shards[:2]
        assert replace(stored_split, shards=[]) == replace(split, shards=[])
        assert stored.fingerprint(name) == index.fingerprint(name)
        for column in ("bytes", "tokens", "documents", "member_tokens"):
            expected = [getattr(shard, column) for shard in split.shards]
            assert shard_numbers(stored_split.shards, column).tolist() == expected
    assert dict(stored.document_tables) == index.document_tables
    with pytest.raises(IndexError):
        stored.splits["train"].shards[MIN_SHARDS + 3]


def test_a_small_index_has_no_columns(directory: Path) -> None:
    """Columns of an earlier index of the directory are removed."""
    assert (directory / INDEX_COLUMNS).exists()
    save_index(index_of(MIN_SHARDS - 1), directory)

    assert not (directory / INDEX_COLUMNS).exists()
    assert not isinstance(open_index(directory), StoredIndex)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_columns_do_not_count(index: Index, directory: Path, seed: int) -> None:
    path = directory / INDEX_COLUMNS
    flip(path, int(np.random.default_rng(seed).integers(path.stat().st_size)))

    assert open_index(directory) == load_index(directory) == index


def test_columns_of_another_index_do_not_count(index: Index, directory: Path, tmp_path: Path) -> None:
    """An earlier version of MegaTAPE would write the index alone."""
    path = directory / INDEX_FILE
    path.write_text(path.read_text().replace("t0.tar", "x0.tar"))

    assert open_index(directory).splits["train"].shards[0].file == "x0.tar"
