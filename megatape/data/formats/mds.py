"""MosaicML's streaming data sets (MDS, version 2): a folder with index.json and shards of samples.

A shard, little-endian (streaming/base/format/mds in mosaicml-streaming):

    uint32         number of samples S
    uint32 [S+1]   byte offset of each sample, and end of the last one
    JSON           columns of the shard, as in index.json
    samples        for each sample: uint32 sizes of columns without a fixed size, then the columns, by name

Token ids are in a column `tokens` or `input_ids`: an ndarray, or bytes, in which llm-foundry writes int64. Samples are
documents, or equally long pieces of a document stream. We write documents.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
from pydantic import Field

from megatape.data.counts import Count
from megatape.data.formats.token_format import TokenFormat
from megatape.data.io.compression import CORRUPTED, decompressed
from megatape.errors import MissingPath, UserError, content_errors
from megatape.utils.files.files import create_file
from megatape.utils.files.json_files import read_json
from megatape.utils.files.paths import FileName
from megatape.utils.values.validation import as_type

INDEX = "index.json"
VERSION = 2
COLUMNS = ("tokens", "input_ids")
# Size of shards to write, the default of streaming's writer.
SHARD_BYTES = 2**26
HASH = "sha256"
# Algorithms with a fixed hash length.
HASHES = hashlib.algorithms_guaranteed - {"shake_128", "shake_256"}
# Limits while reading a shard, because its index and compressed sizes are not trusted.
MAX_SAMPLES = 2**26
MAX_SAMPLE_BYTES = 2**29
# Compression -> suffix of such files.
COMPRESSION_SUFFIXES = {"zstd": ".zst", "gz": ".gz"}
# Types of an ndarray's shape and ids, by the code stored before them.
SHAPES = {0: "u1", 1: "<u2", 2: "<u4", 3: "<u8"}
IDS = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4", 64: "<u8", 65: "<i8"}
# Errors raised while reading a corrupted shard.
READING_ERRORS: tuple[type[Exception], ...] = (ValueError, IndexError, KeyError, struct.error, *CORRUPTED)
NAMES = {np.dtype(kind).name: np.dtype(kind) for kind in IDS.values()}


class Mds(TokenFormat):
    """Folder with an index and shards."""

    piece = "sample"

    def read(self, path: Path, dtype: np.dtype) -> Iterator[np.ndarray]:
        index = path / INDEX
        if not index.is_file():
            raise MissingPath(f"{index}: not found: give the folder of one split of a data set of MosaicML streaming")
        try:
            content = as_type(read_json(index), Index)
            shards = [Shard(path, entry) for entry in content.shards]
            if content.version != VERSION:
                raise UserError(f"version {content.version}, not {VERSION}")
        except ValueError as error:
            raise UserError(f"{index}: no index of MosaicML streaming that can be read ({error})") from error
        for shard in shards:
            yield from shard.ids()

    def write(self, path: Path, documents: Iterable[np.ndarray], dtype: np.dtype) -> None:
        path.mkdir()
        shards: list[dict[str, Any]] = []
        samples: list[bytes] = []
        settings = _settings(dtype)
        empty_size = 8 + len(json.dumps(settings, sort_keys=True))
        size = empty_size
        for ids in documents:
            sample = _encoded(ids.astype(dtype, copy=False))
            if samples and size + len(sample) + 4 > SHARD_BYTES:
                shards.append(_write(path, len(shards), settings, samples))
                samples = []
                size = empty_size
            samples.append(sample)
            size += len(sample) + 4
        if samples:
            shards.append(_write(path, len(shards), settings, samples))
        (path / INDEX).write_text(json.dumps({"shards": shards, "version": VERSION}, sort_keys=True), encoding="utf-8")


@dataclass(frozen=True)
class File:
    """File listed in index.json, with its hashes by algorithm."""

    basename: FileName
    bytes: Count
    hashes: dict[str, str]


@dataclass(frozen=True)
class Entry:
    """Shard listed in index.json.

    Attributes:
        format: Shard format.
        samples: Number of samples.
        compression: Compression, or None.
        raw_data: Uncompressed file.
        zip_data: Compressed file, or None.
        column_names: Column names; empty in other formats.
        column_encodings: Each column's encoding.
        column_sizes: Each column's size in bytes, or None if it varies by sample.
    """

    format: str
    samples: Annotated[Count, Field(le=MAX_SAMPLES)]
    compression: str | None
    raw_data: File
    zip_data: File | None
    column_names: tuple[str, ...] = ()
    column_encodings: tuple[str, ...] = ()
    column_sizes: tuple[Count | None, ...] = ()


@dataclass(frozen=True)
class Index:
    """Content of index.json."""

    shards: list[Entry]
    version: int


class Shard:
    """Shard described by index.json.

    Attributes:
        file: Entry of the stored file.
        path: Path of the stored file.
        samples: Number of samples.
        column: Column with token ids.
        encoding: Its encoding.
        sizes: Column name -> size in bytes, or None if it varies by sample.
        compression: Compression, one of COMPRESSION_SUFFIXES, or None.

    Raises:
        UserError: The format or compression is not supported.
    """

    def __init__(self, folder: Path, entry: Entry) -> None:
        columns = dict(zip(entry.column_names, entry.column_encodings, strict=True))
        column = None
        for name in COLUMNS:
            if name in columns:
                column = name
                break
        if entry.format != "mds" or column is None:
            raise UserError(f"format {entry.format} with columns {columns}: what is read is mds with {' or '.join(COLUMNS)}")
        self.compression: str | None = None
        if entry.zip_data:
            self.compression = (entry.compression or "").partition(":")[0]
        if self.compression not in (*COMPRESSION_SUFFIXES, None):
            raise UserError(f"compression {entry.compression}: what is read is {', '.join(COMPRESSION_SUFFIXES)}, or none")
        self.file = entry.zip_data or entry.raw_data
        self.path = folder / self.file.basename
        self.samples = entry.samples
        self.column = column
        self.encoding = columns[column]
        self.sizes = dict(zip(entry.column_names, entry.column_sizes, strict=True))

    def ids(self) -> Iterator[np.ndarray]:
        """Yield the ids of each sample. Raises FileNotFoundError, or UserError if the shard differs from index.json."""
        self._check()
        with self.path.open("rb") as stored, content_errors(f"{self.path}: corrupted", "copy it again", READING_ERRORS):
            file: BinaryIO = stored
            if self.compression:
                file = decompressed(stored, f"shard{COMPRESSION_SUFFIXES[self.compression]}")
            count = 4 + 4 * (self.samples + 1)
            head = np.frombuffer(file.read(count), "<u4").astype(np.int64)
            sizes = np.diff(head[1:])
            if head[0] != self.samples or head[1] < count or sizes.size < self.samples or (sizes <= 0).any():
                raise UserError("its samples are not where they should be")
            longest = max(head[1] - count, sizes.max(initial=0))
            if longest > MAX_SAMPLE_BYTES:
                raise UserError(f"a sample of {longest:,} bytes, more than {MAX_SAMPLE_BYTES:,}")
            file.read(int(head[1]) - count)
            for size in sizes.tolist():
                yield self._decode(file.read(size), size)

    def _check(self) -> None:
        if not self.path.is_file():
            raise MissingPath(f"{self.path}: not found, {INDEX} lists it: copy it again")
        size = self.path.stat().st_size
        if size != self.file.bytes:
            raise UserError(f"{self.path}: {size:,} bytes, {INDEX} says {self.file.bytes:,}: copy it again")
        for algorithm in self.file.hashes.keys() & HASHES:
            with self.path.open("rb") as file:
                actual = hashlib.file_digest(file, algorithm).hexdigest()
            expected = self.file.hashes[algorithm]
            if actual != expected:
                raise UserError(f"{self.path}: corrupted, {algorithm} is {actual}, {INDEX} says {expected}: copy it again")

    def _decode(self, sample: bytes, length: int) -> np.ndarray:
        """Return a sample's token ids, given its size in bytes."""
        num_sizes = sum(size is None for size in self.sizes.values())
        sizes = list(struct.unpack_from(f"<{num_sizes}I", sample))
        begin = 4 * num_sizes
        for name, size in self.sizes.items():
            if size is None:
                size = sizes.pop(0)
            if len(sample) < length or begin + size > length:
                raise UserError("truncated")
            if name == self.column:
                return _array(sample[begin : begin + size], self.encoding)
            begin += size
        raise AssertionError


def _array(content: bytes, encoding: str) -> np.ndarray:
    """Return the token ids in a column. Raises UserError if it does not contain integers."""
    kind, *settings = encoding.split(":")
    if encoding == "bytes":
        return np.frombuffer(content, "<i8")
    if kind != "ndarray" or (settings and settings[0] not in NAMES):
        raise UserError(f"its ids are {encoding}: what is read is bytes, or ndarray of integers")
    if settings:
        dtype = NAMES[settings[0]]
        begin = 0
    else:
        dtype = np.dtype(IDS[content[0]])
        begin = 1
    if len(settings) < 2:
        # The encoding lacks the shape, so it is in the content.
        dims, code = divmod(content[begin], 4)
        begin += 1 + dims * np.dtype(SHAPES[code]).itemsize
    return np.frombuffer(content[begin:], dtype)


def _encoded(ids: np.ndarray) -> bytes:
    """Return a sample with one column: an ndarray with its shape. The settings of the shard have its type."""
    code = next(code for code, kind in SHAPES.items() if ids.size <= np.iinfo(kind).max)
    num_dims = 1
    shape = np.array([ids.size], SHAPES[code])
    content = bytes([num_dims << 2 | code]) + shape.tobytes() + ids.tobytes()
    return struct.pack("<I", len(content)) + content


def _settings(dtype: np.dtype) -> dict[str, Any]:
    """Return the shard description for index.json and for the shard itself."""
    return {
        "column_encodings": [f"ndarray:{dtype.name}"],
        "column_names": [COLUMNS[0]],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [HASH],
        "size_limit": SHARD_BYTES,
        "version": VERSION,
    }


def _write(folder: Path, number: int, settings: dict[str, Any], samples: list[bytes]) -> dict[str, Any]:
    """Write a shard. Returns its entry for index.json."""
    config = json.dumps(settings, sort_keys=True).encode()
    begin = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = begin + np.cumsum([0, *map(len, samples)])
    content = b"".join([struct.pack("<I", len(samples)), offsets.astype("<u4").tobytes(), config, *samples])
    path = folder / f"shard.{number:05}.mds"
    with create_file(path) as file:
        file.write(content)
    raw = {"basename": path.name, "bytes": len(content), "hashes": {HASH: hashlib.new(HASH, content).hexdigest()}}
    return settings | {"raw_data": raw, "samples": len(samples), "zip_data": None}
