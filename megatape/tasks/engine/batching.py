"""Batches of prompts that need no padding."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TypeVar

Example = TypeVar("Example")
BATCH_TOKENS = 2**15  # of prompts that are answered together


def equal_lengths(
    examples: Iterable[Example], length: Callable[[Example], int], most_tokens: int = BATCH_TOKENS
) -> list[list[Example]]:
    """Batches of examples with the same length in tokens, the shortest first, of at most `most_tokens` or one example."""
    batches = []
    for size, group in groupby(sorted(examples, key=length), length):
        equal, most = list(group), max(1, most_tokens // size)
        batches += [equal[begin : begin + most] for begin in range(0, len(equal), most)]
    return batches
