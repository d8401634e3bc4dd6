"""Reads index versions 1 to 3, which list each shard member with its sha256, because shards had no checksums."""

import hashlib
from dataclasses import dataclass
from typing import Any

from megatape.data.counts import Count
from megatape.data.shards.layout import NPY_HEADER_BYTES, first_id
from megatape.errors import UserError
from megatape.utils.values.validation import as_type


@dataclass(frozen=True)
class LegacyMember:
    """A `.npy` file in a shard.

    Attributes:
        offset: Offset in the shard.
        bytes: Size including the header.
        tokens: Token ids.
        documents: End tokens.
        sha256: Its hash.
    """

    offset: Count
    bytes: Count
    tokens: Count
    documents: Count
    sha256: str


@dataclass(frozen=True)
class LegacyShard:
    """Tar file in the data directory."""

    file: str
    bytes: Count
    members: list[LegacyMember]


@dataclass(frozen=True)
class LegacySplit:
    """Split. Its other fields have not changed since."""

    shards: list[LegacyShard]


def upgrade_splits(content: Any, itemsize: int) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Convert the splits of an earlier index.

    Args:
        content: `splits` in the earlier index.
        itemsize: Bytes per token id.

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
    """Return the entry of a shard. Raises UserError unless its members are where every version wrote them."""
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
