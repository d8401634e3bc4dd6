"""MosaicML's streaming data sets (MDS, version 2): a folder with index.json and shards of samples.

A shard, little-endian (streaming/base/format/mds in mosaicml-streaming):

    uint32         number of samples S
    uint32 [S+1]   where each sample begins in the shard, in bytes, and where the last one ends
    JSON           the shard's columns, as in index.json
    samples        of each: uint32 sizes of the columns that have no fixed one, then the columns, by name

Token ids are a column `tokens` or `input_ids`: an ndarray, or bytes, which llm-foundry writes of int64. What the samples are
is up to who wrote them: documents, or pieces of equal length of a stream of documents. We write documents.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from megatape.data.counts import Count
from megatape.data.formats.format import TokenFormat
from megatape.data.io.compression import CORRUPTED, decompressed
from megatape.errors import MissingPath, UserError, content_errors
from megatape.utils.files import FileName, as_type, create_file, read_json

INDEX = "index.json"
VERSION = 2
COLUMNS = ("tokens", "input_ids")
SHARD_BYTES = 2**26  # of what we write, as streaming's own writer
HASH = "sha256"
HASHES = hashlib.algorithms_guaranteed - {"shake_128", "shake_256"}  # whose hashes have any length
# that are read of a shard, whose index and compression may promise anything
MAX_SAMPLES = 2**26
MAX_SAMPLE_BYTES = 2**29
PACKED = {"zstd": ".zst", "gz": ".gz"}  # compressions, and the endings of such files elsewhere
# Of an ndarray's shape and ids, by the codes before them.
SHAPES = {0: "u1", 1: "<u2", 2: "<u4", 3: "<u8"}
IDS = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4", 64: "<u8", 65: "<i8"}
# What reading a corrupted shard leads to.
FAULTS: tuple[type[Exception], ...] = (ValueError, IndexError, KeyError, struct.error, *CORRUPTED)
NAMES = {np.dtype(kind).name: np.dtype(kind) for kind in IDS.values()}


class Mds(TokenFormat):
    """A folder."""

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
        size = empty = 8 + len(json.dumps(settings, sort_keys=True))
        for ids in documents:
            sample = _encoded(ids.astype(dtype, copy=False))
            if samples and size + len(sample) + 4 > SHARD_BYTES:
                shards.append(_write(path, len(shards), settings, samples))
                samples = []
                size = empty
            samples.append(sample)
            size += len(sample) + 4
        if samples:
            shards.append(_write(path, len(shards), settings, samples))
        (path / INDEX).write_text(json.dumps({"shards": shards, "version": VERSION}, sort_keys=True), encoding="utf-8")


@dataclass(frozen=True)
class File:
    """A file of index.json, and its hashes by algorithm."""

    basename: FileName
    bytes: Count
    hashes: dict[str, str]


@dataclass(frozen=True)
class Entry:
    """A shard of index.json. Shards of other formats have no columns. zip_data: None unless it is compressed."""

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
    """The content of index.json."""

    shards: list[Entry]
    version: int


class Shard:
    """A shard as index.json describes it. Raises UserError for one that cannot be read.

    file: the one that is there. column, encoding: of the token ids. sizes: of all columns in bytes, by name; None: each sample
    says. compression: one of PACKED, or None.
    """

    def __init__(self, folder: Path, entry: Entry) -> None:
        columns = dict(zip(entry.column_names, entry.column_encodings, strict=True))
        column = next((name for name in COLUMNS if name in columns), None)
        if entry.format != "mds" or column is None:
            raise UserError(f"format {entry.format} with columns {columns}: what is read is mds with {' or '.join(COLUMNS)}")
        self.compression = (entry.compression or "").partition(":")[0] if entry.zip_data else None
        if self.compression not in (*PACKED, None):
            raise UserError(f"compression {entry.compression}: what is read is {', '.join(PACKED)}, or none")
        self.file = entry.zip_data or entry.raw_data
        self.path = folder / self.file.basename
        self.samples = entry.samples
        self.column = column
        self.encoding = columns[column]
        self.sizes = dict(zip(entry.column_names, entry.column_sizes, strict=True))

    def ids(self) -> Iterator[np.ndarray]:
        """Ids of each sample. Raises FileNotFoundError, or UserError for a shard that differs from index.json."""
        self._check()
        with self.path.open("rb") as stored, content_errors(f"{self.path}: corrupted", "copy it again", FAULTS):
            file = decompressed(stored, f"shard{PACKED[self.compression]}") if self.compression else stored
            count = 4 + 4 * (self.samples + 1)
            head = np.frombuffer(file.read(count), "<u4").astype(np.int64)
            sizes = np.diff(head[1:])
            if head[0] != self.samples or head[1] < count or sizes.size < self.samples or (sizes <= 0).any():
                raise UserError("its samples are not where they should be")
            if (longest := max(head[1] - count, sizes.max(initial=0))) > MAX_SAMPLE_BYTES:
                raise UserError(f"a sample of {longest:,} bytes, more than {MAX_SAMPLE_BYTES:,}")
            file.read(int(head[1]) - count)
            for size in sizes.tolist():
                yield self._decode(file.read(size), size)

    def _check(self) -> None:
        if not self.path.is_file():
            raise MissingPath(f"{self.path}: not found, {INDEX} lists it: copy it again")
        if (size := self.path.stat().st_size) != self.file.bytes:
            raise UserError(f"{self.path}: {size:,} bytes, {INDEX} says {self.file.bytes:,}: copy it again")
        for algorithm in self.file.hashes.keys() & HASHES:
            with self.path.open("rb") as file:
                found = hashlib.file_digest(file, algorithm).hexdigest()
            if found != self.file.hashes[algorithm]:
                raise UserError(
                    f"{self.path}: corrupted, {algorithm} is {found}, {INDEX} says {self.file.hashes[algorithm]}: copy it again"
                )

    def _decode(self, sample: bytes, length: int) -> np.ndarray:
        """The token ids of a sample of so many bytes."""
        given = sum(size is None for size in self.sizes.values())
        left = list(struct.unpack_from(f"<{given}I", sample))
        begin = 4 * given
        for name, fixed in self.sizes.items():
            size = left.pop(0) if fixed is None else fixed
            if len(sample) < length or begin + size > length:
                raise UserError("truncated")
            if name == self.column:
                return _array(sample[begin : begin + size], self.encoding)
            begin += size
        raise AssertionError


def _array(content: bytes, encoding: str) -> np.ndarray:
    """Token ids as a column has them. Raises UserError if they are no such thing."""
    kind, *settings = encoding.split(":")
    if encoding == "bytes":
        return np.frombuffer(content, "<i8")
    if kind != "ndarray" or (settings and settings[0] not in NAMES):
        raise UserError(f"its ids are {encoding}: what is read is bytes, or ndarray of integers")
    dtype = NAMES[settings[0]] if settings else np.dtype(IDS[content[0]])
    begin = 0 if settings else 1
    if len(settings) < 2:  # the shape is not in the encoding, but here
        dims, code = divmod(content[begin], 4)
        begin += 1 + dims * np.dtype(SHAPES[code]).itemsize
    return np.frombuffer(content[begin:], dtype)


def _encoded(ids: np.ndarray) -> bytes:
    """A sample of one column, an ndarray whose type the shard knows and whose shape is here."""
    code = next(code for code, kind in SHAPES.items() if ids.size <= np.iinfo(kind).max)
    content = bytes([1 << 2 | code]) + np.array([ids.size], SHAPES[code]).tobytes() + ids.tobytes()
    return struct.pack("<I", len(content)) + content


def _settings(dtype: np.dtype) -> dict[str, Any]:
    """Description of a shard in index.json and in the shard itself."""
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
    """Write a shard; returns its part of index.json."""
    config = json.dumps(settings, sort_keys=True).encode()
    begin = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = begin + np.cumsum([0, *map(len, samples)])
    content = b"".join([struct.pack("<I", len(samples)), offsets.astype("<u4").tobytes(), config, *samples])
    path = folder / f"shard.{number:05}.mds"
    with create_file(path) as file:
        file.write(content)
    raw = {"basename": path.name, "bytes": len(content), "hashes": {HASH: hashlib.new(HASH, content).hexdigest()}}
    return settings | {"raw_data": raw, "samples": len(samples), "zip_data": None}
