"""Spans of a split's stream in each sample: in memory, or in a file shared by the ranks of a node.

The file is written once, and each sample reads a few bytes of it, because the arrays of a corpus as large as C4 take gigabytes
on every rank. It is read and verified like shards (data/shards/reader.py), not memory-mapped:

    spans        first token and inputs of each span, by sample; zeros up to a whole chunk
    samples      number of spans before each sample, and of all spans, int64; zeros up to a whole chunk
    checksums    of each chunk of both, as in data/shards/layout.py
    summary      an object of JSON
    end          size of the summary in bytes, and its XXH3, int64 each
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, NamedTuple

import numpy as np
import xxhash
from pydantic import Field

from megatape.data.counts import Count
from megatape.data.shards.layout import CHECKSUM_BYTES, CHUNK_BYTES, checksums
from megatape.data.shards.shard_file import ShardFile
from megatape.errors import UserError
from megatape.utils.files import create_file
from megatape.utils.json_files import parse_json
from megatape.utils.paths import temporary_name
from megatape.utils.retries import retry_transient_errors
from megatape.utils.validation import as_type

FORMAT = 1
SPAN = np.dtype([("begin", "<i8"), ("inputs", "<i4")])
SAMPLE = np.dtype("<i8")
END = np.dtype([("summary_bytes", "<u8"), ("summary_hash", "<u8")])
# Number of bytes copied at a time, a multiple of CHUNK_BYTES.
WRITE_BYTES = 2**20
# Maximum size of the summary, which has a number for each shard.
MAX_SUMMARY_BYTES = 2**30


class Part(NamedTuple):
    """Samples of a part of a split, such as a shard.

    Attributes:
        begins: First token of each span in the stream, int64 [spans].
        inputs: Inputs of each span, int [spans].
        order: Numbers of the spans by sample, int64 [spans].
        sizes: Number of spans of each sample, int64 [samples].
    """

    begins: np.ndarray
    inputs: np.ndarray
    order: np.ndarray
    sizes: np.ndarray


class Arrangement(ABC):
    """Spans of each sample.

    Attributes:
        num_samples: Number of samples.
        num_inputs: Number of inputs of all samples.
        shard_samples: Number of samples of each part, int64 [parts].
    """

    num_samples: int
    num_inputs: int
    shard_samples: np.ndarray

    @abstractmethod
    def spans(self, sample: int) -> list[tuple[int, int]]:
        """Return first token and inputs of each span of a sample, by its number.

        Raises:
            UserError: The arrangement is corrupted.
            OSError: It cannot be read.
        """


class ArrangementInMemory(Arrangement):
    """Spans of each sample, in memory: 12 bytes a span and 8 a sample.

    Args:
        parts: Parts of the split, in order.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        spans = []
        sizes = []
        for part in parts:
            spans.append(_span_array(part))
            sizes.append(part.sizes)
        self._spans = np.concatenate(spans)
        # Sample i has spans [starts[i], starts[i + 1]).
        self._starts = np.r_[0, np.cumsum(np.concatenate(sizes))]
        self.shard_samples = np.array([part.size for part in sizes])
        self.num_samples = int(self.shard_samples.sum())
        self.num_inputs = int(self._spans["inputs"].sum(dtype=np.int64))

    def spans(self, sample: int) -> list[tuple[int, int]]:
        begin = self._starts.item(sample)
        end = self._starts.item(sample + 1)
        return self._spans[begin:end].tolist()


@dataclass(frozen=True)
class Summary:
    """Summary of a file of spans.

    Attributes:
        format: Version of the format.
        identity: Hash of everything that decides the arrangement.
        num_spans: Number of spans.
        num_inputs: Number of inputs of all spans.
        shard_samples: Number of samples of each part.
        checksums_hash: XXH3 of the checksums, which are seeded with `identity`.
    """

    format: int
    identity: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    num_spans: Count
    num_inputs: Count
    shard_samples: list[Count]
    checksums_hash: str


class StoredArrangement(Arrangement):
    """Spans of each sample, in a file. Memory holds the checksums: 8 bytes for every 4,096 of the file.

    Args:
        path: File written by `store`.
        identity: Hash of everything that decides the arrangement.

    Raises:
        UserError: The file is corrupted, or belongs to another arrangement.
        OSError: It cannot be read.
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
        summary = as_type(parse_json(content), Summary)
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

    def spans(self, sample: int) -> list[tuple[int, int]]:
        begin, end = self._read(self._first_sample, SAMPLE, sample, sample + 2).tolist()
        return self._read(0, SPAN, begin, end).tolist()

    def _read(self, start: int, dtype: np.dtype, begin: int, end: int) -> np.ndarray:
        """Read and verify items [begin, end) of the section that begins at `start`."""
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

    def _corrupted(self, fault: str) -> UserError:
        return UserError(f"{self._path}: corrupted, {fault}: remove it, and the next run writes it again")


def store(path: Path, identity: str, parts: Iterable[Part]) -> None:
    """Write the file of an arrangement, all or nothing. Memory holds one part at a time.

    Args:
        path: File to write or replace.
        identity: Hash of everything that decides the arrangement, 64 hexadecimal digits.
        parts: Parts of the split, in order.

    Raises:
        OSError: The file cannot be written.
    """
    partial_file = temporary_name(path)
    try:
        with create_file(partial_file) as file, TemporaryFile(dir=path.parent) as starts:
            _write(file, starts, identity, parts)
            file.flush()
            os.fsync(file.fileno())
        partial_file.replace(path)
    finally:
        partial_file.unlink(missing_ok=True)


def _write(file: IO[bytes], starts: IO[bytes], identity: str, parts: Iterable[Part]) -> None:
    """Write all sections. `starts` is a temporary file for the section of samples while the spans are written."""
    spans = _Section(file, identity)
    num_spans = 0
    num_inputs = 0
    shard_samples = []
    starts.write(np.zeros(1, SAMPLE).tobytes())
    for part in parts:
        spans.write(_span_array(part).tobytes())
        ends = num_spans + np.cumsum(part.sizes)
        starts.write(ends.astype(SAMPLE).tobytes())
        num_spans += part.order.size
        num_inputs += int(part.inputs.sum(dtype=np.int64))
        shard_samples.append(part.sizes.size)
    spans.close()
    samples = _Section(file, identity)
    starts.seek(0)
    while content := starts.read(WRITE_BYTES):
        samples.write(content)
    samples.close()

    sums = bytes(spans.checksums + samples.checksums)
    summary = Summary(
        format=FORMAT,
        identity=identity,
        num_spans=num_spans,
        num_inputs=num_inputs,
        shard_samples=shard_samples,
        checksums_hash=xxhash.xxh3_128_hexdigest(sums),
    )
    text = json.dumps(asdict(summary)).encode()
    end = np.array([(len(text), xxhash.xxh3_64_intdigest(text))], END)
    file.write(sums + text + end.tobytes())


class _Section:
    """Writes a section in whole chunks, and keeps their checksums."""

    def __init__(self, file: IO[bytes], identity: str) -> None:
        self._file = file
        self._identity = identity
        self._buffer = bytearray()
        self.checksums = bytearray()

    def write(self, content: bytes) -> None:
        """Append to the section. Incomplete chunks wait for more content."""
        self._buffer += content
        num_bytes = len(self._buffer) // CHUNK_BYTES * CHUNK_BYTES
        chunks = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        self._file.write(chunks)
        self.checksums += checksums(chunks, self._identity)

    def close(self) -> None:
        """Fill the last chunk with zeros and write it."""
        self.write(bytes(-len(self._buffer) % CHUNK_BYTES))


def _span_array(part: Part) -> np.ndarray:
    spans = np.empty(part.order.size, SPAN)
    spans["begin"] = part.begins[part.order]
    spans["inputs"] = part.inputs[part.order]
    return spans


def _whole_chunks(size: int) -> int:
    return -(size // -CHUNK_BYTES) * CHUNK_BYTES
