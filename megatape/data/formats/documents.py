"""Splits a stream of token ids into documents."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from megatape.errors import UserError, flag

# Maximum tokens per document, because it is held in memory. More tokens without an end token are treated as corrupted.
MAX_TOKENS = 2**26


def divided(pieces: Iterator[np.ndarray], eos_id: int, origin: Path, max_tokens: int = MAX_TOKENS) -> Iterator[np.ndarray]:
    """Yield the documents in a stream of token ids, each with its end token. The last one may lack it.

    Args:
        pieces: Parts of the stream.
        eos_id: Token ending documents.
        origin: Path of the stream, for errors.
        max_tokens: Maximum tokens per document.

    Raises:
        UserError: There is no end token, or none within `max_tokens`.
    """
    # Parts of the current document, and their size in tokens.
    begun: list[np.ndarray] = []
    size = 0
    has_ends = False
    for ids in pieces:
        *finished, remainder = np.split(ids, np.flatnonzero(ids == eos_id) + 1)
        for part in finished:
            if begun:
                part = np.concatenate([*begun, part])
            yield part
            begun = []
            size = 0
            has_ends = True
        if remainder.size:
            begun.append(remainder)
            size += remainder.size
        if size > max_tokens:
            break
    if not begun:
        return
    if size > max_tokens or not has_ends:
        raise UserError(
            f"{origin}: {size:,} tokens without the end token, {eos_id}: give the tokenizer that made them, or "
            f"{flag('append_eos')} if documents (samples of mds) were made without"
        )
    yield np.concatenate(begun)
