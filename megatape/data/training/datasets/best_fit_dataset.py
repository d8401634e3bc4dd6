"""Samples with as many documents as fit, for `data.samples: best_fit`."""

import logging
from collections.abc import Iterator

import numpy as np

from megatape.data.shards.hashes import content_hash
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.packed_dataset import PackedDataset
from megatape.data.training.packing.arrangement import Arrangement, ArrangementInMemory, PackedPart
from megatape.data.training.packing.arrangement_writer import store_arrangement
from megatape.data.training.packing.best_fit import pack
from megatape.data.training.packing.stored_arrangement import StoredArrangement
from megatape.errors import UserError
from megatape.utils.files.locks import locked

LOG = logging.getLogger(__name__)

# Packing version. Files with other versions are ignored.
PACKING = "best_fit 1"


class BestFitDataset(PackedDataset):
    """Samples of documents, packed by best fit decreasing.

    A document with m tokens takes m - 1 inputs. A longer document is cut every N inputs, and its remainder is packed
    like a document. So every token except the first of its document is a target once per epoch (Ding et al., "Fewer
    truncations improve language modeling", 2024). Packing each shard separately bounds the memory. A document spanning two
    shards is cut at the boundary.

    On each node, the first rank opening the split packs it, and stores the arrangement in a file beside the shards or their
    copies. All ranks read this file, in later runs as well. Packing takes document lengths from the tables, or
    reads the whole split without them.

    Args:
        split, sequence_length, window: See Dataset.

    Raises:
        UserError: The split has no documents, or its tables differ from its tokens.
    """

    def __init__(self, split: StoredSplit, sequence_length: int, *, window: int = 0) -> None:
        if split.num_tokens == 0:
            raise UserError(f"{split.description} has no documents: prepare more text")
        super().__init__(split, sequence_length, _open_packing(split, sequence_length), window=window)
        if self.num_samples == 0:
            raise UserError(f"{split.description} has no document with more than its end: prepare more text")


def _open_packing(split: StoredSplit, sequence_length: int) -> Arrangement:
    """Open the file with a split's packed samples, after writing it if it is missing.

    If the file cannot be written, the samples stay in memory.

    Args:
        split: Split to pack.
        sequence_length: Tokens per sample.
    """
    identity = content_hash(PACKING, split.fingerprint, split.name, sequence_length, split.table_entries)
    path = split.shard_folder / f"packing-{split.name}-{sequence_length}-{identity[:16]}.bin"
    if not path.exists():
        try:
            with locked(path.with_name("packing.lock"), remove=True):
                # Another rank may have written it while this one waited for the lock.
                if not path.exists():
                    store_arrangement(path, identity, _packed_shards(split, sequence_length))
        except OSError as error:
            LOG.warning(
                f"{path} cannot be written ({error}): every rank packs {split.description} and keeps the result in memory. "
                "Make the folder writable, or set data.cache"
            )
            return ArrangementInMemory(_packed_shards(split, sequence_length))
    return StoredArrangement(path, identity)


def _packed_shards(split: StoredSplit, sequence_length: int) -> Iterator[PackedPart]:
    first_tokens = np.r_[0, split.shard_ends]
    for first, lengths in zip(first_tokens, _lengths_by_shard(split), strict=False):
        begins, inputs = _cut_documents(first, lengths, sequence_length)
        yield PackedPart(begins, inputs, pack(inputs, sequence_length))


def _lengths_by_shard(split: StoredSplit) -> Iterator[np.ndarray]:
    """Yield the document lengths in each shard, int64. A document spanning shards counts as one document in each."""
    shard_ends = split.shard_ends.tolist()
    # Ends of the documents that end in this shard or later.
    ends = np.empty(0, np.int64)
    # The shard's first token, and the end of all documents so far.
    begin = 0
    last = 0
    for lengths in split.document_lengths():
        ends = np.concatenate([ends, last + np.cumsum(lengths)])
        last += int(lengths.sum())
        while shard_ends and shard_ends[0] <= last:
            end = shard_ends.pop(0)
            yield np.diff(np.r_[begin, ends[ends < end], end])
            begin = end
            ends = ends[ends > end]
    if last != split.num_tokens:
        raise UserError(
            f"the documents of {split.description} have {last:,} tokens, the split {split.num_tokens:,}: prepare the data again"
        )


def _cut_documents(first: int, lengths: np.ndarray, max_inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut documents into spans. Returns each span's first token and number of inputs.

    Args:
        first: First token in the first document.
        lengths: Tokens in each document, int64 [documents].
        max_inputs: Maximum inputs per span.
    """
    inputs = lengths - 1
    num_spans = -(-inputs // max_inputs)
    # Each span's document, the number of its first span, and how many of its inputs come before the span.
    document = np.repeat(np.arange(lengths.size), num_spans)
    first_span = np.repeat(np.cumsum(num_spans) - num_spans, num_spans)
    before = (np.arange(document.size) - first_span) * max_inputs
    document_begins = np.cumsum(lengths) - lengths
    begins = first + document_begins[document] + before
    return begins, np.minimum(inputs[document] - before, max_inputs)
