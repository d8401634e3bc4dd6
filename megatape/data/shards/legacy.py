"""Indices of versions 1 to 3 of the format. They list each member of a shard with its sha256; their shards had no checksums."""

import hashlib
from dataclasses import dataclass
from typing import Any

from megatape.data.counts import Count
from megatape.data.shards.layout import NPY_HEADER_BYTES, first_id
from megatape.errors import UserError
from megatape.utils.validation import as_type


@dataclass(frozen=True)
class LegacyMember:
    """One `.npy` file in a shard.

    Attributes:
        offset: Offset in the shard.
        bytes: Size, including the header.
        tokens: Number of token ids.
        documents: Number of end tokens among them.
        sha256: Hash of the file.
    """

    offset: Count
    bytes: Count
    tokens: Count
    documents: Count
    sha256: str


@dataclass(frozen=True)
class LegacyShard:
    """One tar file in the data directory."""

    file: str
    bytes: Count
    members: list[LegacyMember]


@dataclass(frozen=True)
class LegacySplit:
    """One split. Its other fields are those of the present version."""

    shards: list[LegacyShard]


def upgrade_splits(content: Any, itemsize: int) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Convert the splits of an earlier index to the present version.

    Args:
        content: `splits` of the earlier index.
        itemsize: Bytes of a token id.

    Returns:
        The splits, and the sha256 of each member by shard.

    Raises:
        UserError: The splits are corrupted.
    """
    splits = {}
    member_hashes = {}
    for name, split in as_type(content, dict[str, LegacySplit]).items():
        shards = [_upgrade_shard(shard, itemsize) for shard in split.shards]
        splits[name] = {**content[name], "shards": shards}
        for shard in split.shards:
            member_hashes[shard.file] = [member.sha256 for member in shard.members]
    return splits, member_hashes


def _upgrade_shard(shard: LegacyShard, itemsize: int) -> dict[str, Any]:
    """Return the entry of a shard. Raises UserError if its members are not where every version has written them."""
    member_tokens = max((member.tokens for member in shard.members), default=0)
    last = len(shard.members) - 1
    for number, member in enumerate(shard.members):
        size = NPY_HEADER_BYTES + member.tokens * itemsize
        offset = first_id(number, member_tokens, itemsize) - NPY_HEADER_BYTES
        is_filled = member.tokens == member_tokens or number == last
        is_in_place = (member.offset, member.bytes) == (offset, size) and offset + size <= shard.bytes
        if not is_filled or not is_in_place:
            raise UserError(f"{shard.file} member {number} does not fit its shard")
    member_hashes = "".join(member.sha256 for member in shard.members)
    return {
        "file": shard.file,
        "bytes": shard.bytes,
        "tokens": sum(member.tokens for member in shard.members),
        "documents": sum(member.documents for member in shard.members),
        "member_tokens": member_tokens,
        "sha256": hashlib.sha256(member_hashes.encode()).hexdigest(),
    }
