"""Samples made of whole documents, as many as fit, so that few are cut."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from megatape.data.shards.cache import CacheFolder
from megatape.data.shards.document_table import DocumentTables, lengths_by_end
from megatape.data.training.dataset import Dataset, Sample
from megatape.data.training.packing import joined, pack
from megatape.data.training.window import WindowOrder
from megatape.errors import UserError


class BestFitDataset(Dataset):
    """Samples of documents that do not see each other, followed by padding (the end token), which has no targets.

    The last token of a document is a target and never an input, so a document of m tokens takes m - 1 places of a sample. One
    that takes more than N is cut every N places, and what remains of it is packed like a document. So every token but the first
    of its document is a target once in an epoch (Ding et al., "Fewer truncations improve language modeling", 2024). Each shard
    is packed by itself, which bounds the memory that packing takes: a document across two shards is cut there.

    Attributes: filled, the share of all places that is not padding, and those of Dataset. Opening takes the lengths of
    documents from the folder's tables, or reads the split where it has none.
    """

    def __init__(
        self, directory: str | Path, split: str, sequence_length: int, cache: CacheFolder | None = None, window: int = 0
    ):
        super().__init__(directory, split, sequence_length, cache, window)
        if self.num_tokens == 0:
            raise UserError(f"{self._name} has no documents: prepare more text")
        begins, places, ends = [], [], []
        num_pieces = 0
        for first, documents in zip(np.r_[0, self._shard_ends], self._documents(split), strict=False):
            piece_begins, piece_places = _pieces(first, documents, sequence_length)
            samples = pack(piece_places, sequence_length)
            order = np.concatenate([np.array(sample, np.int64) for sample in samples]) if samples else np.empty(0, np.int64)
            begins.append(piece_begins[order])
            places.append(piece_places[order].astype(np.int32))
            ends.append(num_pieces + np.cumsum([len(sample) for sample in samples], dtype=np.int64))
            num_pieces += order.size
        # Piece i is tokens [begins[i], begins[i] + places[i]] of the stream; sample i, the pieces before ends[i].
        self._begins, self._places, self._piece_ends = (np.concatenate(parts) for parts in (begins, places, ends))
        self.num_samples = self._piece_ends.size
        if self.num_samples == 0:
            raise UserError(f"{self._name} has no document with more than its end: prepare more text")
        if window:
            self._order = WindowOrder(np.array([part.size for part in ends]), window)
        self.filled = float(self._places.sum(dtype=np.int64) / (self.num_samples * sequence_length))

    def sample(self, index: int) -> Sample:
        self._check(index)
        first = int(self._piece_ends[index - 1]) if index else 0
        pieces = range(first, int(self._piece_ends[index]))
        return joined(map(self._piece, pieces), self.sequence_length, self.eos_id)

    def _piece(self, piece: int) -> tuple[np.ndarray, np.ndarray]:
        """Its tokens, and its targets, which are all of them but the first."""
        begin = int(self._begins[piece])
        ids = self.stream(begin, begin + int(self._places[piece]) + 1)
        return ids, ids[1:]

    def _documents(self, split: str) -> Iterator[np.ndarray]:
        """For each shard the tokens of its documents, and of the parts of documents that it has, int64."""
        shard_ends = self._shard_ends.tolist()
        ends = np.empty(0, np.int64)  # of documents that end in this shard or later
        begin = last = 0  # of the shard, and of all documents so far
        for lengths in self._lengths(split):
            ends = np.concatenate([ends, last + np.cumsum(lengths)])
            last += int(lengths.sum())
            while shard_ends and shard_ends[0] <= last:
                end = shard_ends.pop(0)
                yield np.diff(np.r_[begin, ends[ends < end], end])
                begin, ends = end, ends[ends > end]
        if last != self.num_tokens:
            raise UserError(
                f"the documents of {self._name} have {last:,} tokens, the split {self.num_tokens:,}: prepare the data again"
            )

    def _lengths(self, split: str) -> Iterator[np.ndarray]:
        """The tokens of each document in order, int64, some at a time."""
        index = self._folder.index()
        if tables := index.document_tables.get(split):
            self._folder.fetch(*(table.file for table in tables))
            yield from DocumentTables(self._folder.directory, index, split).lengths()
            return
        yield from lengths_by_end(map(self._reader.member, range(len(self._starts))), self.eos_id)


def _pieces(first: int, documents: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The first token of each piece and the places that it takes. first: token of the first of these documents."""
    places = documents - 1
    counts = -(-places // length)
    of = np.repeat(np.arange(documents.size), counts)
    before = (np.arange(of.size) - np.repeat(np.cumsum(counts) - counts, counts)) * length  # places of the same document
    return first + (np.cumsum(documents) - documents)[of] + before, np.minimum(places[of] - before, length)
