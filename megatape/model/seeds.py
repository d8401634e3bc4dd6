"""Seeds that a text determines, so that they depend neither on other seeds nor on the order in which they are drawn."""

import hashlib
from typing import Literal

from megatape.utils.values.rounding import divide_up


def seed_of(text: str, bits: int, byte_order: Literal["little", "big"]) -> int:
    """Return a seed between 0 and 2^bits - 1, from the SHA-256 hash of a text.

    Args:
        text: Name of what the seed is for.
        bits: Number of bits.
        byte_order: Order in which the hash's first bytes are read. Two orders are in use, and neither can change: runs must
            start with the same weights and resume with the same dropout as in earlier versions.
    """
    num_bytes = divide_up(bits, 8)
    num_spare_bits = 8 * num_bytes - bits
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:num_bytes], byte_order) >> num_spare_bits
