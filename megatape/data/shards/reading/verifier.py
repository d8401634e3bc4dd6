"""Verifies token ids while reading them: by chunk checksums, or by member hashes in earlier versions."""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from megatape.data.shards.entries import Index, Shard, token_dtype
from megatape.data.shards.layout import (
    CHECKSUM_BYTES,
    CHUNK_BYTES,
    NPY_HEADER_BYTES,
    TAR_BLOCK_BYTES,
    checksums,
    covered_bytes,
    first_id,
)

# Verified members to cache for earlier versions, 64 MiB in all.
MEMBER_CACHE_SIZE = 64
# Reads `size` bytes of a shard from `offset` on, or fewer if the shard ends first.
Read = Callable[[int, int], bytes]


class MemberRange(NamedTuple):
    """Token ids [begin, end) in a member of a shard.

    Attributes:
        shard: Entry of the shard.
        member: Member number in the shard.
        begin: First id, counted within the member.
        end: End of the ids.
    """

    shard: Shard
    member: int
    begin: int
    end: int


class Corrupted(Exception):
    """The content of a shard differs from the index. The message says how."""


class Verifier:
    """Reads ids by reading the chunks containing them, and verifies the chunks' checksums."""

    def __init__(self, index: Index) -> None:
        self._vocab_size = index.tokenizer.vocab_size
        self._dtype = token_dtype(self._vocab_size)

    def ids(self, part: MemberRange, read: Read) -> np.ndarray:
        """Read and verify token ids.

        Args:
            part: Ids to read.
            read: Reads bytes of the shard.

        Raises:
            Corrupted: The shard differs from the index.
            OSError: `read` failed.
        """
        shard, member, begin, end = part
        itemsize = self._dtype.itemsize
        covered = covered_bytes(shard.tokens, shard.member_tokens, itemsize)
        first_byte = first_id(member, shard.member_tokens, itemsize) + begin * itemsize
        end_byte = first_byte + (end - begin) * itemsize

        first_chunk = first_byte // CHUNK_BYTES
        end_chunk = -(end_byte // -CHUNK_BYTES)
        content_begin = first_chunk * CHUNK_BYTES
        content_end = min(end_chunk * CHUNK_BYTES, covered)
        content = read_exactly(read, content_begin, content_end - content_begin)

        checksum_begin = covered + TAR_BLOCK_BYTES + first_chunk * CHECKSUM_BYTES
        expected = read_exactly(read, checksum_begin, (end_chunk - first_chunk) * CHECKSUM_BYTES)
        if checksums(content, shard.sha256) != expected:
            raise Corrupted(f"corrupted, bytes {content_begin:,} to {content_end - 1:,} do not have their checksums")
        return self._checked(np.frombuffer(content, self._dtype, end - begin, first_byte - content_begin))

    def _checked(self, ids: np.ndarray) -> np.ndarray:
        # ids.max() takes half a microsecond more.
        highest = np.maximum.reduce(ids)
        if highest >= self._vocab_size:
            raise Corrupted(f"corrupted, token id {highest}, vocab_size is {self._vocab_size}")
        return ids


class MemberVerifier(Verifier):
    """Reads whole members of shards without checksums, from earlier versions, through an LRU cache.

    Args:
        index: Index of the data directory.
        hashes: Each member's sha256, by shard.
        cache_size: Members to cache.
    """

    def __init__(self, index: Index, hashes: dict[str, list[str]], cache_size: int = MEMBER_CACHE_SIZE) -> None:
        super().__init__(index)
        self._cache_size = cache_size
        self._hashes = hashes
        # (shard, member) -> token ids. The most recently used entry comes last.
        self._cache: dict[tuple[str, int], np.ndarray] = {}

    def ids(self, part: MemberRange, read: Read) -> np.ndarray:
        shard, member, begin, end = part
        key = (shard.file, member)
        ids = self._cache.pop(key, None)
        if ids is None:
            ids = self._read_member(shard, member, read)
        self._cache[key] = ids
        if len(self._cache) > self._cache_size:
            least_recent = next(iter(self._cache))
            del self._cache[least_recent]
        return ids[begin:end]

    def _read_member(self, shard: Shard, member: int, read: Read) -> np.ndarray:
        itemsize = self._dtype.itemsize
        num_tokens = min(shard.member_tokens, shard.tokens - member * shard.member_tokens)
        offset = first_id(member, shard.member_tokens, itemsize) - NPY_HEADER_BYTES
        content = read_exactly(read, offset, NPY_HEADER_BYTES + num_tokens * itemsize)
        actual = hashlib.sha256(content).hexdigest()
        expected = self._hashes[shard.file][member]
        if actual != expected:
            raise Corrupted(f"corrupted, sha256 is {actual}, the index says {expected}")
        return self._checked(np.frombuffer(content, self._dtype, num_tokens, NPY_HEADER_BYTES))


def read_exactly(read: Read, offset: int, size: int) -> bytes:
    """Read `size` bytes. Raises Corrupted if there are fewer."""
    content = read(offset, size)
    if len(content) < size:
        raise Corrupted(f"truncated, {len(content)} of its {size} bytes at offset {offset} are there")
    return content
