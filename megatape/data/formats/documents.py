"""Division of a stream of token ids into documents."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from megatape.errors import UserError

# Maximum tokens per document, which is held in memory. A longer run without an end token is treated as corrupted.
MAX_TOKENS = 2**26


def divided(pieces: Iterator[np.ndarray], eos_id: int, origin: Path, max_tokens: int = MAX_TOKENS) -> Iterator[np.ndarray]:
    """Yield the documents of a stream of token ids, each with its end token. The last one may have none.

    Args:
        pieces: Parts of the stream.
        eos_id: Token that ends documents.
        origin: Path of the stream, for errors.
        max_tokens: Maximum number of tokens of a document.

    Raises:
        UserError: There is no end token, or none in `max_tokens`.
    """
    # Parts of the current document, and their number of tokens.
    begun: list[np.ndarray] = []
    size = 0
    has_ends = False
    for ids in pieces:
        *finished, rest = np.split(ids, np.flatnonzero(ids == eos_id) + 1)
        for part in finished:
            if begun:
                part = np.concatenate([*begun, part])
            yield part
            begun = []
            size = 0
            has_ends = True
        if rest.size:
            begun.append(rest)
            size += rest.size
        if size > max_tokens:
            break
    if not begun:
        return
    if size > max_tokens or not has_ends:
        raise UserError(
            f"{origin}: {size:,} tokens without the end token, {eos_id}: give the tokenizer that made them, or `append_eos` if "
            "documents (samples of mds) were made without"
        )
    yield np.concatenate(begun)
