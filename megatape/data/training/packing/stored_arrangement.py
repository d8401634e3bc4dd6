"""Arrangements in a file shared by a node's ranks.

For a corpus as large as C4, the arrays would take gigabytes on every rank. So they are written once, and reading a sample reads
a few bytes. Like shards (data/shards/reading/reader.py), the file is read and verified, not memory-mapped.
"""

from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from megatape.data.shards.layout import CHECKSUM_BYTES, CHUNK_BYTES, checksums
from megatape.data.shards.reading.shard_file import ShardFile
from megatape.data.training.packing.arrangement import SPAN, Arrangement, Span
from megatape.data.training.packing.arrangement_layout import END, FORMAT, SAMPLE, ArrangementSummary
from megatape.errors import UserError
from megatape.utils.files.json_files import parse_json
from megatape.utils.files.retries import retry_transient_errors
from megatape.utils.values.validation import as_type

# Maximum size of the summary, which lists one number per shard.
MAX_SUMMARY_BYTES = 2**30


class StoredArrangement(Arrangement):
    """Arrangement in a file. Memory holds only the checksums: 8 bytes for every 4,096 in the file.

    Args:
        path: File written by `store_arrangement`.
        identity: Hash of everything that decides the arrangement.

    Raises:
        UserError: The file is corrupted or belongs to another arrangement.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path
        self._identity = identity
        self._file: ShardFile | None = ShardFile(path)
        size = path.stat().st_size
        end = np.frombuffer(self._exactly(size - END.itemsize, END.itemsize), END)[0]
        summary_bytes = int(end["summary_bytes"])
        if not 0 < summary_bytes <= min(size - END.itemsize, MAX_SUMMARY_BYTES):
            raise self._corrupted("its summary is missing")
        content = self._exactly(size - END.itemsize - summary_bytes, summary_bytes)
        if xxhash.xxh3_64_intdigest(content) != end["summary_hash"]:
            raise self._corrupted("the checksum of its summary is wrong")
        summary = as_type(parse_json(content), ArrangementSummary)
        if (summary.format, summary.identity) != (FORMAT, identity):
            raise self._corrupted("it belongs to other samples")
        self.shard_samples = np.array(summary.shard_samples, np.int64)
        self.num_samples = int(self.shard_samples.sum())
        self.num_inputs = summary.num_inputs
        self._first_sample = _whole_chunks(summary.num_spans * SPAN.itemsize)
        sample_bytes = _whole_chunks((self.num_samples + 1) * SAMPLE.itemsize)
        num_chunks = (self._first_sample + sample_bytes) // CHUNK_BYTES
        self._checksums = self._exactly(num_chunks * CHUNK_BYTES, num_chunks * CHECKSUM_BYTES)
        if xxhash.xxh3_128_hexdigest(self._checksums) != summary.checksums_hash:
            raise self._corrupted("its checksums have changed")

    def spans(self, sample: int) -> list[Span]:
        begin, end = self._read(self._first_sample, SAMPLE, sample, sample + 2).tolist()
        return [Span._make(span) for span in self._read(0, SPAN, begin, end).tolist()]

    def _read(self, start: int, dtype: np.dtype, begin: int, end: int) -> np.ndarray:
        """Read and verify items [begin, end) in the section starting at byte `start`."""
        first = start + begin * dtype.itemsize
        last = start + end * dtype.itemsize
        first_chunk = first // CHUNK_BYTES
        last_chunk = -(last // -CHUNK_BYTES)
        first_byte = first_chunk * CHUNK_BYTES
        end_byte = last_chunk * CHUNK_BYTES
        content = self._exactly(first_byte, end_byte - first_byte)
        expected = self._checksums[first_chunk * CHECKSUM_BYTES : last_chunk * CHECKSUM_BYTES]
        if checksums(content, self._identity) != expected:
            raise self._corrupted(f"bytes {first_byte:,} to {end_byte - 1:,} do not have their checksums")
        return np.frombuffer(content, dtype, end - begin, first - first_byte)

    def _exactly(self, offset: int, size: int) -> bytes:
        content = b""
        if offset >= 0:
            try:
                content = self._attempt(offset, size)
            except OSError:
                # Read again, patiently.
                content = retry_transient_errors(partial(self._attempt, offset, size))
        if len(content) < size:
            raise self._corrupted("it is truncated")
        return content

    def _attempt(self, offset: int, size: int) -> bytes:
        try:
            if self._file is None:
                self._file = ShardFile(self._path)
            return self._file.read(offset, size)
        except OSError:
            # The next attempt opens the file again.
            self._file = None
            raise

    def _corrupted(self, reason: str) -> UserError:
        return UserError(f"{self._path}: corrupted, {reason}: remove it, and the next run writes it again")


def _whole_chunks(size: int) -> int:
    return -(size // -CHUNK_BYTES) * CHUNK_BYTES
