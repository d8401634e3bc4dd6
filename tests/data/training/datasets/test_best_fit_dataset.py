"""Samples of several documents, packed by best fit: every document is learned once, and masks keep documents apart."""

from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from megatape.data.shards.index import load_index, save_index
from megatape.data.shards.reading.reader import SplitReader
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.tables.table_writer import TableWriter, table_rows
from megatape.data.training.datasets.best_fit_dataset import BestFitDataset
from megatape.nn.targets import IGNORE_INDEX
from tests.helpers.data.data_directory import EOS, Documents, MakeDirectory
from tests.helpers.runs.batches import interleaved, make_loader, mixture_of

LENGTH = 24

# Tokens of a document, or of a part of it, including the last target
Piece = tuple[int, ...]


class DocumentPart(NamedTuple):
    """Tokens of a document that lie in one shard."""

    shard: int
    ids: list[int]


def add_tables(directory: Path, documents: Documents) -> None:
    """Add tables of documents to both splits of a data directory."""
    index = load_index(directory)
    for split in ("train", "validation"):
        writer = TableWriter(directory, split)
        for ids in documents:
            rows = table_rows(
                tokens=[len(ids)], text_bytes=[3 * len(ids)], locations=["here"], urls=[""], hashes=[7], scores=[{}]
            )
            writer.add(rows)
        index.document_tables[split] = writer.close()
    save_index(index, directory)


def pieces_in_sample(dataset: BestFitDataset, index: int) -> list[Piece]:
    """Return the pieces of a sample, after checking that masks and targets agree and that padding comes last."""
    sample = dataset.sample(index)
    assert sample.document_starts is not None
    learned = sample.targets != IGNORE_INDEX
    assert (sample.tokens[~learned] == EOS).all(), "padding comes last"
    assert not (np.diff(learned.astype(int)) == 1).any(), "padding comes last"

    pieces = []
    for start in np.unique(sample.document_starts[learned]):
        indices = np.flatnonzero((sample.document_starts == start) & learned)
        assert indices[0] == start
        assert (np.diff(indices) == 1).all()
        last_target = int(sample.targets[indices[-1]])
        piece = (*sample.tokens[indices].tolist(), last_target)
        assert np.array_equal(sample.targets[indices], piece[1:])
        pieces.append(piece)
    return pieces


def parts_in_shards(documents: Documents, shard_tokens: int) -> list[DocumentPart]:
    """Cut the documents of a split where shards meet."""
    parts = []
    start = 0
    for document in documents:
        end = start + len(document)
        for shard in range(start // shard_tokens, -(-end // shard_tokens)):
            first = max(shard * shard_tokens, start)
            last = min((shard + 1) * shard_tokens, end)
            parts.append(DocumentPart(shard, document[first - start : last - start].tolist()))
        start = end
    return parts


def cut(ids: list[int]) -> list[Piece]:
    """Return the pieces expected of a document part."""
    return [tuple(ids[begin : begin + LENGTH + 1]) for begin in range(0, len(ids) - 1, LENGTH)]


@pytest.mark.parametrize("tables", [True, False], ids=["tables", "read"])
def test_every_document_is_in_an_epoch_once(
    make_directory: MakeDirectory, documents: Documents, tables: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document that does not fit is cut into as few pieces as possible. An end token alone is learned nowhere.

    In windows, a sample has documents of one shard, and the samples are the same ones.
    """
    documents = [*documents, np.array([EOS])]
    directory = make_directory(documents)
    if tables:
        add_tables(directory, documents)
        monkeypatch.setattr(SplitReader, "members", None)
    dataset = BestFitDataset(StoredSplit(directory, "train"), LENGTH)
    windowed = BestFitDataset(StoredSplit(directory, "train"), LENGTH, window=1)
    monkeypatch.undo()

    counts: Counter[Piece] = Counter()
    for index in range(dataset.num_samples):
        counts.update(pieces_in_sample(dataset, index))
    parts = parts_in_shards(documents, load_index(directory).splits["train"].shards[0].tokens)
    expected: Counter[Piece] = Counter()
    for part in parts:
        expected.update(cut(part.ids))
    assert counts == expected

    num_targets = sum(len(part.ids) - 1 for part in parts)
    assert dataset.filled == pytest.approx(num_targets / (dataset.num_samples * LENGTH))
    assert dataset.num_samples <= num_targets / LENGTH * 1.03 + 1 + parts[-1].shard

    assert windowed.num_samples == dataset.num_samples
    shard_of_piece = {}
    for part in parts:
        for piece in cut(part.ids):
            if counts[piece] == 1:
                shard_of_piece[piece] = part.shard
    shards = []
    mixture = mixture_of(windowed)
    for consumed in range(windowed.num_samples):
        index = mixture.order.locate(consumed).sample_index
        assert np.array_equal(mixture.sample(consumed).tokens, dataset.sample(index).tokens)
        shards += [shard_of_piece[piece] for piece in pieces_in_sample(dataset, index) if piece in shard_of_piece]
    shards_in_turn = [shard for shard, _ in groupby(shards)]
    assert sorted(shards_in_turn) == list(range(parts[-1].shard + 1)), "one shard after the other"


def test_tables_of_other_documents_are_refused(make_directory: MakeDirectory, documents: Documents) -> None:
    directory = make_directory(documents)
    add_tables(directory, documents[:-1])
    message = r"the documents in the tables of train have 4,\d+ tokens, its members 4,\d+: prepare"
    with pytest.raises(ValueError, match=message):
        BestFitDataset(StoredSplit(directory, "train"), LENGTH)


def test_positions_restart_with_each_document_on_any_ranks(make_directory: MakeDirectory, documents: Documents) -> None:
    dataset = BestFitDataset(StoredSplit(make_directory(documents), "train"), LENGTH)
    expected = make_loader(dataset).step(16)
    ranks = [make_loader(dataset, rank, world_size=2).step(16) for rank in range(2)]
    for batch, expected_batch in zip(interleaved(ranks), expected, strict=True):
        assert batch.tokens.equal(expected_batch.tokens)
        assert batch.targets.equal(expected_batch.targets)
        assert batch.document_starts is not None
        assert (batch.position_ids + batch.document_starts).equal(torch.arange(LENGTH).expand_as(batch.tokens))
