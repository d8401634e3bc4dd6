"""Writes arrangements to files."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
import xxhash

from megatape.data.shards.layout import CHUNK_BYTES, checksums
from megatape.data.training.packing.arrangement import PackedPart, span_array
from megatape.data.training.packing.arrangement_layout import END, FORMAT, SAMPLE, ArrangementSummary
from megatape.utils.files.files import create_file
from megatape.utils.files.paths import temporary_name

# Copying buffer in bytes, a multiple of CHUNK_BYTES.
WRITE_BYTES = 2**20


def store_arrangement(path: Path, identity: str, parts: Iterable[PackedPart]) -> None:
    """Write an arrangement to a file, all or nothing, holding one part in memory at a time.

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


def _write(file: IO[bytes], starts: IO[bytes], identity: str, parts: Iterable[PackedPart]) -> None:
    """Write all sections. `starts` is a temporary file collecting the samples section while spans are being written."""
    spans = _Section(file, identity)
    num_spans = 0
    num_inputs = 0
    shard_samples = []
    starts.write(np.zeros(1, SAMPLE).tobytes())
    for part in parts:
        spans.write(span_array(part).tobytes())
        ends = num_spans + np.cumsum(part.packing.sizes)
        starts.write(ends.astype(SAMPLE).tobytes())
        num_spans += part.packing.order.size
        num_inputs += int(part.inputs.sum(dtype=np.int64))
        shard_samples.append(part.packing.sizes.size)
    spans.close()
    samples = _Section(file, identity)
    starts.seek(0)
    for content in iter(partial(starts.read, WRITE_BYTES), b""):
        samples.write(content)
    samples.close()

    sums = bytes(spans.checksums + samples.checksums)
    summary = ArrangementSummary(
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
    """Section being written in whole chunks, with their checksums."""

    def __init__(self, file: IO[bytes], identity: str) -> None:
        self._file = file
        self._identity = identity
        self._buffer = bytearray()
        self.checksums = bytearray()

    def write(self, content: bytes) -> None:
        """Append content. An incomplete chunk waits for more."""
        self._buffer += content
        num_bytes = len(self._buffer) // CHUNK_BYTES * CHUNK_BYTES
        chunks = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        self._file.write(chunks)
        self.checksums += checksums(chunks, self._identity)

    def close(self) -> None:
        """Pad the last chunk with zeros and write it."""
        self.write(bytes(-len(self._buffer) % CHUNK_BYTES))
