"""Where a shard has its token ids and their checksums, which follows from the number of ids.

A shard is a tar file. webdataset and datasets skip its last entry by its name, so that no tool needs to know of it:

    000000.npy ...   tar header, .npy header, ids, zeros up to a whole block
    __checksums__    tar header, one checksum for each chunk of all bytes before this header, zeros up to a whole block
    zeros

A read gets whole chunks and their checksums. A sample of n bytes gets n + CHUNK on average: 3.0 times what it needs with 1,024
ids of two bytes, 1.06 times with 32,768. A smaller chunk would save nothing, since file systems read pages of this size.

Indices of versions 1 to 3 of the format list each member of a shard with its sha256; their shards had no checksums.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import xxhash

from megatape.data.counts import Count
from megatape.errors import UserError
from megatape.utils.files import as_type

BLOCK = 512  # of a tar
NPY_HEADER = 128
CHUNK = 4096
CHECKSUM = 8  # bytes
CHECKSUMS = "__checksums__"


def first_id(member: int, member_tokens: int, itemsize: int) -> int:
    """Offset of a member's first id, after members of `member_tokens` ids."""
    return member * _stride(member_tokens, itemsize) + BLOCK + NPY_HEADER


@lru_cache  # most shards are alike
def covered_bytes(tokens: int, member_tokens: int, itemsize: int) -> int:
    """Size of all members: what the checksums cover, and the offset of their header."""
    full, rest = divmod(tokens, member_tokens)
    return full * _stride(member_tokens, itemsize) + (_stride(rest, itemsize) if rest else 0)


def checksums(content: bytes | memoryview, sha256: str) -> bytes:
    """Those of the chunks of `content`, which begins with a chunk.

    XXH3 reads 30 GB/s, where CRC-32 reads 4 and BLAKE2 1, and 64 bits leave one error in 2^64 unseen. Its seed is the sha256
    of the shard's members, which the index lists. So another shard that is right in itself has other checksums.
    """
    seed = int(sha256[:16], 16)
    view = memoryview(content)
    return b"".join([xxhash.xxh3_64_digest(view[begin : begin + CHUNK], seed) for begin in range(0, len(view), CHUNK)])


@lru_cache
def _stride(tokens: int, itemsize: int) -> int:
    """Bytes from a member of so many ids to the next one."""
    return BLOCK - (NPY_HEADER + tokens * itemsize) // -BLOCK * BLOCK


@dataclass(frozen=True)
class EarlierMember:
    """One `.npy` file in a shard: `bytes` bytes at `offset`, header included; `documents` counts the EOS ids."""

    offset: Count
    bytes: Count
    tokens: Count
    documents: Count
    sha256: str


@dataclass(frozen=True)
class EarlierShard:
    """One tar file in the data directory."""

    file: str
    bytes: Count
    members: list[EarlierMember]


@dataclass(frozen=True)
class EarlierSplit:
    """One split, which has further fields, the same as now."""

    shards: list[EarlierShard]


def from_earlier(content: Any, itemsize: int) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Splits as the present version has them, and the sha256 of each member by shard.

    Args:
        content: The splits of an earlier index.
        itemsize: Of its ids.

    Raises:
        UserError: They are corrupted.
    """
    splits = as_type(content, dict[str, EarlierSplit])
    shards = {name: [_shard(shard, itemsize) for shard in split.shards] for name, split in splits.items()}
    hashes = {shard.file: [member.sha256 for member in shard.members] for split in splits.values() for shard in split.shards}
    return {name: {**content[name], "shards": shards[name]} for name in splits}, hashes


def _shard(shard: EarlierShard, itemsize: int) -> dict[str, Any]:
    """The entry of a shard. Raises UserError if its members are not where every version has written them."""
    member_tokens = max((member.tokens for member in shard.members), default=0)
    for number, member in enumerate(shard.members):
        size = NPY_HEADER + member.tokens * itemsize
        place = first_id(number, member_tokens, itemsize) - NPY_HEADER
        full = member.tokens == member_tokens or number == len(shard.members) - 1
        if not full or (member.offset, member.bytes) != (place, size) or place + size > shard.bytes:
            raise UserError(f"{shard.file} member {number} does not fit its shard")
    return {
        "file": shard.file,
        "bytes": shard.bytes,
        "tokens": sum(member.tokens for member in shard.members),
        "documents": sum(member.documents for member in shard.members),
        "member_tokens": member_tokens,
        "sha256": hashlib.sha256("".join(member.sha256 for member in shard.members).encode()).hexdigest(),
    }
