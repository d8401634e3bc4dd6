"""Text lengths in tokens, and batches of equal length, which need no padding."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from megatape.errors import UserError
from megatape.utils.values.options import Count, Listed

# Maximum text length. Longer texts would take too long.
MAX_LENGTH = 2**24
# Maximum number of prompt tokens in a batch.
BATCH_TOKENS = 2**15


def _check_order(lengths: tuple[int, ...]) -> tuple[int, ...]:
    if list(lengths) != sorted(set(lengths)):
        raise UserError("give lengths in ascending order, such as 1024,2048")
    return lengths


LengthList = Annotated[Listed[Annotated[Count, Field(le=MAX_LENGTH)]], AfterValidator(_check_order)]


def usual_lengths(limit: int) -> tuple[int, ...]:
    """Return the powers of two from 256 to `limit`, or `limit` alone if it is less."""
    lengths = tuple(2**power for power in range(8, limit.bit_length()))
    if not lengths:
        return (limit,)
    return lengths


Example = TypeVar("Example")


def equal_lengths(
    examples: Iterable[Example], length: Callable[[Example], int], max_tokens: int = BATCH_TOKENS
) -> list[list[Example]]:
    """Split examples into batches of equal length, shortest first.

    Args:
        examples: Examples in any order.
        length: Returns the number of tokens in an example.
        max_tokens: Maximum number of tokens in a batch. A longer example gets its own batch.
    """
    batches = []
    for num_tokens, group in groupby(sorted(examples, key=length), length):
        same_length = list(group)
        batch_size = max(1, max_tokens // num_tokens)
        for begin in range(0, len(same_length), batch_size):
            batches.append(same_length[begin : begin + batch_size])
    return batches
