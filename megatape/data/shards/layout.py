"""Layout of a shard: the offsets of its token ids and their checksums, computed from the number of ids.

A shard is a tar file. webdataset and datasets skip its last entry by its name, so no tool needs to know of it:

    000000.npy ...   tar header, .npy header, ids, zeros up to a whole block
    __checksums__    tar header, one checksum for each chunk of all bytes before this header, zeros up to a whole block
    zeros

A read gets whole chunks and their checksums. A sample of n bytes gets n + CHUNK_BYTES on average: 3.0 times what it needs with
1,024 ids of two bytes, 1.06 times with 32,768. A smaller chunk would save nothing: file systems read pages of this size.
"""

from functools import lru_cache

import xxhash

TAR_BLOCK_BYTES = 512
NPY_HEADER_BYTES = 128
CHUNK_BYTES = 4096
CHECKSUM_BYTES = 8
# Name of the tar's last entry.
CHECKSUMS = "__checksums__"


def first_id(member: int, member_tokens: int, itemsize: int) -> int:
    """Return the offset of a member's first id, after members of `member_tokens` ids."""
    return member * _member_bytes(member_tokens, itemsize) + TAR_BLOCK_BYTES + NPY_HEADER_BYTES


@lru_cache  # Most shards have the same size.
def covered_bytes(tokens: int, member_tokens: int, itemsize: int) -> int:
    """Return the size of all members. Checksums cover these bytes, and their header follows."""
    num_full, rest = divmod(tokens, member_tokens)
    size = num_full * _member_bytes(member_tokens, itemsize)
    if rest:
        size += _member_bytes(rest, itemsize)
    return size


def shard_bytes(tokens: int, member_tokens: int, itemsize: int) -> int:
    """Return the least size of a shard: its members, and the entry with their checksums."""
    covered = covered_bytes(tokens, member_tokens, itemsize)
    num_chunks = -(covered // -CHUNK_BYTES)
    return covered + TAR_BLOCK_BYTES + num_chunks * CHECKSUM_BYTES


def checksums(content: bytes | memoryview, sha256: str) -> bytes:
    """Return the checksums of the chunks of `content`. `content` must start at a chunk boundary.

    XXH3 reads 30 GB/s, compared to 4 for CRC-32 and 1 for BLAKE2, and with 64 bits misses one error in 2^64. Its seed is the
    sha256 of the shard's members in the index. So another shard that is valid in itself has other checksums.
    """
    seed = int(sha256[:16], 16)
    view = memoryview(content)
    begins = range(0, len(view), CHUNK_BYTES)
    return b"".join([xxhash.xxh3_64_digest(view[begin : begin + CHUNK_BYTES], seed) for begin in begins])


@lru_cache
def _member_bytes(tokens: int, itemsize: int) -> int:
    """Return the size of a member with its headers, in whole blocks of the tar."""
    content_bytes = NPY_HEADER_BYTES + tokens * itemsize
    num_blocks = -(content_bytes // -TAR_BLOCK_BYTES)
    return TAR_BLOCK_BYTES + num_blocks * TAR_BLOCK_BYTES
