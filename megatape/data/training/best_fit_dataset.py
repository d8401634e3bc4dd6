"""Samples of documents, as many as fit."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from megatape.data.shards.cache import CacheFolder
from megatape.data.shards.hashes import content_hash
from megatape.data.training.arrangement import Arrangement, ArrangementInMemory, PackedPart
from megatape.data.training.arrangement_writer import store_arrangement
from megatape.data.training.best_fit import pack
from megatape.data.training.packed_dataset import PackedDataset
from megatape.data.training.stored_arrangement import StoredArrangement
from megatape.errors import UserError
from megatape.utils.locks import locked

LOG = logging.getLogger(__name__)

# Version of the packing. Stored samples of other versions are not read.
PACKING = "best_fit 1"


class BestFitDataset(PackedDataset):
    """Samples of documents, packed by best fit decreasing.

    A document of m tokens takes m - 1 inputs of a sample. A longer document is cut every N inputs, and the rest is packed like
    a document. So every token except the first of its document is a target once in an epoch (Ding et al., "Fewer truncations
    improve language modeling", 2024). Each shard is packed separately, which bounds the memory of packing. A document that
    spans two shards is cut there.

    The first rank of a node to open the split packs it, and stores the samples in a file beside the shards or their copies. All
    ranks read this file, in later runs as well. Packing takes the lengths of documents from the folder's tables, or
    reads the split if it has none. Arguments, attributes and errors: see Dataset.
    """

    def __init__(
        self, directory: str | Path, split: str, sequence_length: int, cache: CacheFolder | None = None, window: int = 0
    ) -> None:
        super().__init__(directory, split, sequence_length, cache, window)
        if self.num_tokens == 0:
            raise UserError(f"{self.name} has no documents: prepare more text")
        self._arrange(self._stored_samples())
        if self.num_samples == 0:
            raise UserError(f"{self.name} has no document with more than its end: prepare more text")

    def _stored_samples(self) -> Arrangement:
        """Open the file of the split's samples, writing it if it is missing. Keep them in memory if it cannot be written."""
        identity = content_hash(PACKING, self.fingerprint, self.split, self.sequence_length, self.table_entries)
        path = self.shard_folder / f"packing-{self.split}-{self.sequence_length}-{identity[:16]}.bin"
        if not path.exists():
            try:
                with locked(path.with_name("packing.lock"), remove=True):
                    # Another rank may have written it meanwhile.
                    if not path.exists():
                        store_arrangement(path, identity, self._packed_shards())
            except OSError as error:
                LOG.warning(
                    f"{path} cannot be written ({error}): every rank packs {self.name} and keeps the result in memory. Make "
                    "the folder writable, or set data.cache"
                )
                return ArrangementInMemory(self._packed_shards())
        return StoredArrangement(path, identity)

    def _packed_shards(self) -> Iterator[PackedPart]:
        first_tokens = np.r_[0, self.shard_ends]
        for first, lengths in zip(first_tokens, self._documents(), strict=False):
            begins, inputs = _spans(first, lengths, self.sequence_length)
            yield PackedPart(begins, inputs, pack(inputs, self.sequence_length))

    def _documents(self) -> Iterator[np.ndarray]:
        """Yield the lengths of a shard's documents, int64. A document that spans shards counts with its part in each."""
        shard_ends = self.shard_ends.tolist()
        # Ends of the documents that end in this shard or later.
        ends = np.empty(0, np.int64)
        # First token of the shard, and end of all documents so far.
        begin = 0
        last = 0
        for lengths in self.document_lengths():
            ends = np.concatenate([ends, last + np.cumsum(lengths)])
            last += int(lengths.sum())
            while shard_ends and shard_ends[0] <= last:
                end = shard_ends.pop(0)
                yield np.diff(np.r_[begin, ends[ends < end], end])
                begin = end
                ends = ends[ends > end]
        if last != self.num_tokens:
            raise UserError(
                f"the documents of {self.name} have {last:,} tokens, the split {self.num_tokens:,}: prepare the data again"
            )


def _spans(first: int, lengths: np.ndarray, max_inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first token and the number of inputs of each span.

    Args:
        first: First token of the first document.
        lengths: Number of tokens of each document, int64.
        max_inputs: Maximum number of inputs of a span.
    """
    inputs = lengths - 1
    num_spans = -(-inputs // max_inputs)
    # Document of each span, its number in the document, and the number of inputs before it.
    document = np.repeat(np.arange(lengths.size), num_spans)
    first_span = np.repeat(np.cumsum(num_spans) - num_spans, num_spans)
    before = (np.arange(document.size) - first_span) * max_inputs
    document_begins = np.cumsum(lengths) - lengths
    begins = first + document_begins[document] + before
    return begins, np.minimum(inputs[document] - before, max_inputs)
