"""Data directories to merge, and checks of merged ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.shards.entries import SPLITS, Index
from megatape.data.shards.index import load_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.writer import entropy
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.data_directory import edit_index, read_all


def prepared(folder: Path, name: str, tokenizer: Tokenizer) -> Path:
    """A data directory of two units, whose documents have its name."""
    lines = [
        json.dumps({"text": f"{name} {number} " + "the fox " * (number % 9), "url": f"http://{name}"}) for number in range(90)
    ]
    (folder / f"{name}.jsonl").write_text("\n".join(["{", *lines]))
    source = Source("jsonl", (str(folder / f"{name}.jsonl"),), unit_bytes=4000)
    prepare(PreparationOptions(source, 0.3, tokenizer, 0), folder / name)
    return folder / name


def places_of(folder: Path, split: str) -> list[str]:
    tables = StoredSplit(folder, split).tables
    return [tables.document(number).place for number in range(load_index(folder).splits[split].documents)]


def check_whole(folder: Path, parts: list[Path], index: Index) -> None:
    """The folder has all documents of its parts in order, by its tokens, tables, counts and record of its source."""
    indices = [load_index(part) for part in parts]
    sources = [each.source["inputs"] for each in index.merged]
    assert sources == [[f"{part.parent}/{name}.jsonl"] for part, name in zip(parts, ("web", "books", "code"), strict=False)]
    assert index == load_index(folder) and check_ledger(index).written == sum(check_ledger(each).written for each in indices)
    for split in SPLITS:
        ids = np.concatenate([read_all(part, split) for part in parts])
        assert np.array_equal(read_all(folder, split), ids)
        assert places_of(folder, split) == [place for part in parts for place in places_of(part, split)]
        content = index.splits[split]
        assert (content.tokens, content.documents) == (ids.size, sum(each.splits[split].documents for each in indices))
        assert content.unigram_entropy == pytest.approx(entropy(np.bincount(ids)))
    assert index.ledger == {name: counts for each in indices for name, counts in each.ledger.items()}
    assert (index.validation_share, index.rules) == (indices[0].validation_share, indices[0].rules)


def rename_table(folder: Path, number: int, name: str) -> Path:
    """Rename a table of the training split, in the folder and its index. Return the renamed file."""

    def rename(content: dict[str, Any]) -> None:
        table = content["document_tables"]["train"][number]
        (folder / table["file"]).rename(folder / name)
        table["file"] = name

    edit_index(folder, rename)
    return folder / name
