"""Columns of a large index, so that ranks open a data directory of millions of shards without parsing `index.json`.

`save_index` writes `index.columns` beside the index of a directory with more than MIN_SHARDS shards. It repeats the index in
another form, and names the index by its checksum: if the index has changed, the file does not count. Layout, little-endian:

    size      of the header, uint64
    header    JSON: checksum of `index.json`, fingerprints, number of shards and size of the names of each split, and the index
              without shards and document tables
    tables    JSON: document tables by split
    splits    for each split: columns of NUMBERS, int64, the hashes, 32 bytes each, the end of each name, uint64, and the names
    checksum  of everything before, 16 bytes
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from io import FileIO
from pathlib import Path

import numpy as np
import xxhash

from megatape.data.document_entries import INDEX_FILE, DocumentTable
from megatape.data.shards.entries import Index, Shard, Split
from megatape.errors import UserError
from megatape.utils.files.atomic import write_atomically
from megatape.utils.values.lazy_sequence import LazySequence
from megatape.utils.values.validation import as_type

INDEX_COLUMNS = "index.columns"
# A smaller index is parsed in less than 0.1 s.
MIN_SHARDS = 4096
NUMBERS = ("bytes", "tokens", "documents", "member_tokens")
NUMBER = np.dtype("<i8")
NAME_END = np.dtype("<u8")
SHA256_BYTES = 32
SIZE_BYTES = 8
CHECKSUM_BYTES = 16
CHUNK_BYTES = 2**22


class ShardColumns(LazySequence[Shard]):
    """Shards of a split, read one at a time.

    Args:
        file: Open file.
        offset: Offset of the split.
        count: Number of shards.
    """

    def __init__(self, file: FileIO, offset: int, count: int) -> None:
        self._file = file
        self._offset = offset
        self._count = count
        self._hashes = offset + len(NUMBERS) * count * NUMBER.itemsize
        self._name_ends = self._hashes + count * SHA256_BYTES
        self._names = self._name_ends + count * NAME_END.itemsize

    def __len__(self) -> int:
        return self._count

    def column(self, name: str) -> np.ndarray:
        """Return a number of all shards, int64 [shards]."""
        size = self._count * NUMBER.itemsize
        offset = self._offset + NUMBERS.index(name) * size
        return np.frombuffer(_read(self._file, offset, size), NUMBER).astype(np.int64)

    def read_item(self, number: int) -> Shard:
        """Return a shard."""
        fields: dict[str, int] = {}
        for column, name in enumerate(NUMBERS):
            offset = self._offset + (column * self._count + number) * NUMBER.itemsize
            fields[name] = int.from_bytes(_read(self._file, offset, NUMBER.itemsize), "little")
        sha256 = _read(self._file, self._hashes + number * SHA256_BYTES, SHA256_BYTES).hex()
        first = max(number - 1, 0)
        offset = self._name_ends + first * NAME_END.itemsize
        ends = np.frombuffer(_read(self._file, offset, (number + 1 - first) * NAME_END.itemsize), NAME_END).tolist()
        begin = 0
        if number:
            begin = ends[0]
        file = _read(self._file, self._names + begin, ends[-1] - begin).decode()
        return Shard(file=file, sha256=sha256, **fields)


class _Tables(Mapping[str, list[DocumentTable]]):
    """Document tables by split, parsed when they are needed."""

    def __init__(self, file: FileIO, offset: int, size: int) -> None:
        self._file = file
        self._offset = offset
        self._size = size

    @cached_property
    def _tables(self) -> dict[str, list[DocumentTable]]:
        import orjson

        content = orjson.loads(_read(self._file, self._offset, self._size))
        return as_type(content, dict[str, list[DocumentTable]])

    def __getitem__(self, split: str) -> list[DocumentTable]:
        return self._tables[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


@dataclass(frozen=True)
class StoredIndex(Index):
    """Index whose shards stay in the file.

    Attributes:
        fingerprints: Fingerprint of each split.
    """

    fingerprints: Mapping[str, str] | None = None

    def fingerprint(self, split: str) -> str:
        assert self.fingerprints is not None
        return self.fingerprints[split]


def shard_numbers(shards: Sequence[Shard], name: str) -> np.ndarray:
    """Return `bytes`, `tokens`, `documents` or `member_tokens` of all shards, int64 [shards]."""
    if isinstance(shards, ShardColumns):
        return shards.column(name)
    return np.array([getattr(shard, name) for shard in shards], np.int64)


def save_columns(index: Index, directory: Path, content: bytes) -> None:
    """Write the columns of an index, or remove earlier ones if the index is small.

    Args:
        index: The index.
        directory: Data directory.
        content: Content of `index.json`.
    """
    # Imported here, because help and configuration errors should appear at once.
    import orjson

    path = directory / INDEX_COLUMNS
    if sum(len(split.shards) for split in index.splits.values()) <= MIN_SHARDS:
        path.unlink(missing_ok=True)
        return
    sections = []
    sizes = {}
    splits = {}
    for name, split in index.splits.items():
        section = _pack_shards(split.shards)
        sections.append(section)
        sizes[name] = len(section)
        splits[name] = replace(split, shards=[])
    tables = orjson.dumps({name: list(entries) for name, entries in index.document_tables.items()})
    header = {
        "checksum": xxhash.xxh3_128_hexdigest(content),
        "fingerprints": {name: index.fingerprint(name) for name in index.splits},
        "num_shards": {name: len(split.shards) for name, split in index.splits.items()},
        "sizes": sizes,
        "tables_size": len(tables),
        "index": asdict(replace(index, splits=splits, document_tables={})),
    }
    encoded = orjson.dumps(header)
    body = b"".join([len(encoded).to_bytes(SIZE_BYTES, "little"), encoded, tables, *sections])
    write_atomically(path, body + xxhash.xxh3_128_digest(body))


def open_columns(directory: Path) -> StoredIndex | None:
    """Return the index of a data directory from its columns. None if there are none for its present index."""
    import orjson

    try:
        file = FileIO(directory / INDEX_COLUMNS, opener=_open_at_once)
    except OSError:
        return None
    if not _is_intact(file):
        return None
    header_size = int.from_bytes(_read(file, 0, SIZE_BYTES), "little")
    header = orjson.loads(_read(file, SIZE_BYTES, header_size))
    with FileIO(directory / INDEX_FILE) as index_file:
        if _checksum(index_file, os.fstat(index_file.fileno()).st_size).hexdigest() != header["checksum"]:
            return None
    index = as_type(header["index"], Index)
    offset = SIZE_BYTES + header_size
    tables = _Tables(file, offset, header["tables_size"])
    offset += header["tables_size"]
    splits: dict[str, Split] = {}
    for name, size in header["sizes"].items():
        shards = ShardColumns(file, offset, header["num_shards"][name])
        splits[name] = replace(index.splits[name], shards=shards)
        offset += size
    fields = {**vars(index), "splits": splits, "document_tables": tables}
    return StoredIndex(**fields, fingerprints=header["fingerprints"])


def _open_at_once(name: str, flags: int) -> int:
    # Opening a pipe would wait for its other end.
    return os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _pack_shards(shards: Sequence[Shard]) -> bytes:
    columns = [shard_numbers(shards, name).astype(NUMBER).tobytes() for name in NUMBERS]
    columns += [bytes.fromhex(shard.sha256) for shard in shards]
    names = [shard.file.encode() for shard in shards]
    columns.append(np.cumsum([len(name) for name in names]).astype(NAME_END).tobytes())
    return b"".join(columns + names)


def _is_intact(file: FileIO) -> bool:
    """Whether a regular file ends with the checksum of its content."""
    status = os.fstat(file.fileno())
    size = status.st_size - CHECKSUM_BYTES
    if not stat.S_ISREG(status.st_mode) or size < SIZE_BYTES:
        return False
    return _checksum(file, size).digest() == _read(file, size, CHECKSUM_BYTES)


def _checksum(file: FileIO, size: int) -> xxhash.xxh3_128:
    checksum = xxhash.xxh3_128()
    for offset in range(0, size, CHUNK_BYTES):
        checksum.update(os.pread(file.fileno(), min(CHUNK_BYTES, size - offset), offset))
    return checksum


def _read(file: FileIO, offset: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.pread(file.fileno(), size, offset)
        if not part:
            raise UserError(f"{file.name}: truncated while it was open: copy the data directory again")
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts)
