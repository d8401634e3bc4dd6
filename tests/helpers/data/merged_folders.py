"""Prepare data directories for merging, and check merged ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.data.counts import DocumentCounts
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
    """Prepare folder/name, a data directory with two units. Each text starts with the name."""
    input_file = folder / f"{name}.jsonl"
    lines = ["{"]  # a bad record
    for number in range(90):
        text = f"{name} {number} " + "the fox " * (number % 9)
        lines.append(json.dumps({"text": text, "url": f"http://{name}"}))
    input_file.write_text("\n".join(lines))

    source = Source("jsonl", (str(input_file),), unit_bytes=4000)
    prepare(PreparationOptions(source, 0.3, tokenizer, 0), folder / name)
    return folder / name


def locations_of(folder: Path, split: str) -> list[str]:
    """Return where each document in a split was read, using the document tables."""
    tables = StoredSplit(folder, split).tables
    num_documents = load_index(folder).splits[split].documents
    return [tables.document(number).location for number in range(num_documents)]


def check_whole(folder: Path, parts: list[Path], index: Index) -> None:
    """Check that a merged folder has its parts' documents in order: tokens, tables, counts, ledger and sources."""
    part_indices = [load_index(part) for part in parts]
    _check_sources(index, parts)
    assert index == load_index(folder)
    assert check_ledger(index).written == sum(check_ledger(part).written for part in part_indices)

    expected_ledger: dict[str, DocumentCounts] = {}
    for part_index in part_indices:
        expected_ledger |= part_index.ledger
    assert index.ledger == expected_ledger
    assert index.validation_share == part_indices[0].validation_share
    assert index.rules == part_indices[0].rules

    for split in SPLITS:
        _check_split(folder, parts, index, split)


def _check_sources(index: Index, parts: list[Path]) -> None:
    """Check that the index records each part's input file."""
    inputs = [part.source["inputs"] for part in index.merged]
    names = ("web", "books", "code")
    expected = [[f"{part.parent}/{name}.jsonl"] for part, name in zip(parts, names, strict=False)]
    assert inputs == expected


def _check_split(folder: Path, parts: list[Path], index: Index, split: str) -> None:
    expected_ids = np.concatenate([read_all(part, split) for part in parts])
    expected_locations = []
    expected_documents = 0
    for part in parts:
        expected_locations += locations_of(part, split)
        expected_documents += load_index(part).splits[split].documents

    entry = index.splits[split]
    assert np.array_equal(read_all(folder, split), expected_ids)
    assert locations_of(folder, split) == expected_locations
    assert entry.tokens == expected_ids.size
    assert entry.documents == expected_documents
    assert entry.unigram_entropy == pytest.approx(entropy(np.bincount(expected_ids)))


def rename_table(folder: Path, number: int, name: str) -> Path:
    """Rename a table in the training split, both in the folder and in its index. Return the new path."""

    def rename(content: dict[str, Any]) -> None:
        table = content["document_tables"]["train"][number]
        (folder / table["file"]).rename(folder / name)
        table["file"] = name

    edit_index(folder, rename)
    return folder / name
