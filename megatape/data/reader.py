"""Reads the members of one split in place. Sizes are checked on opening, a member's content when it is first read."""

import hashlib
import mmap
from functools import lru_cache
from pathlib import Path

import numpy as np

from megatape.data.cache import ShardCache
from megatape.data.index import Index, Member, Shard, token_dtype

# A mapped file holds a descriptor, of which a process often has only 1024.
MAX_MAPPED_SHARDS = 256
REMEDY = "copy the shard again or re-run the preparation"


class SplitReader:
    """The members of one split, as read-only arrays over the mapped tar files (nothing is extracted or unpickled).

    cache: folder on this node's disk to which shards are copied when first needed, and from which they are read.
    Raises FileNotFoundError if a shard is missing, and ValueError if its size differs from the index.
    """

    def __init__(self, directory: Path, index: Index, split: str, cache: Path | None = None):
        self._directory = directory
        self._cache = None if cache is None else ShardCache(cache, directory, index)
        self._vocab_size = index.tokenizer.vocab_size
        self._dtype = token_dtype(self._vocab_size)
        self._shards = index.splits[split].shards
        for shard in self._shards:
            self._check_size(shard)
        self._members = [
            (number, position) for number, shard in enumerate(self._shards) for position in range(len(shard.members))
        ]
        self._verified = np.zeros(len(self._members), bool)
        self._mapped = lru_cache(maxsize=MAX_MAPPED_SHARDS)(self._map)

    def __len__(self) -> int:
        return len(self._members)

    def member(self, number: int) -> np.ndarray:
        """Token ids [tokens] of member `number` of the split. Raises ValueError if it differs from the index."""
        shard_number, position = self._members[number]
        shard = self._shards[shard_number]
        member = shard.members[position]
        mapped = self._mapped(shard_number)
        size = member.tokens * self._dtype.itemsize  # before it comes the .npy header
        ids = np.frombuffer(mapped, self._dtype, member.tokens, member.offset + member.bytes - size)
        if not self._verified[number]:
            self._verify(shard, position, member, mapped, ids)
            self._verified[number] = True
        return ids

    def _verify(self, shard: Shard, position: int, member: Member, mapped: mmap.mmap, ids: np.ndarray) -> None:
        name = f"{self._directory / shard.file} member {position}"
        found = hashlib.sha256(memoryview(mapped)[member.offset : member.offset + member.bytes]).hexdigest()
        if found != member.sha256:
            raise ValueError(f"{name}: corrupted, sha256 is {found}, the index says {member.sha256}: {REMEDY}")
        if ids.max() >= self._vocab_size:
            raise ValueError(f"{name}: corrupted, token id {ids.max()}, vocab_size is {self._vocab_size}: {REMEDY}")

    def _check_size(self, shard: Shard) -> None:
        path = self._directory / shard.file
        if not path.is_file():
            raise FileNotFoundError(f"{path}: shard not found, the index lists it with {shard.bytes} bytes: {REMEDY}")
        if path.stat().st_size != shard.bytes:
            raise ValueError(
                f"{path}: shard of {path.stat().st_size} bytes, the index says {shard.bytes} "
                f"({len(shard.members)} members): {REMEDY}"
            )

    def _map(self, shard_number: int) -> mmap.mmap:
        shard = self._shards[shard_number]
        self._check_size(shard)  # again: the file may have changed, and reading past the end of a mapped file kills the process
        path = self._directory / shard.file if self._cache is None else self._cache.local(shard)
        with open(path, "rb") as stream:
            return mmap.mmap(stream.fileno(), shard.bytes, access=mmap.ACCESS_READ)
