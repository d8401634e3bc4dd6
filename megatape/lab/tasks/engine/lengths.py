"""Lengths of the tasks, in tokens, and batches of equal length, which need no padding."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from megatape.errors import UserError
from megatape.utils.options import Count, Listed

MAX_LENGTH = 2**24  # more than anybody waits for
BATCH_TOKENS = 2**15  # maximum tokens of the prompts answered together


def _check_order(lengths: tuple[int, ...]) -> tuple[int, ...]:
    if list(lengths) != sorted(set(lengths)):
        raise UserError("give lengths in ascending order, such as 1024,2048")
    return lengths


LengthList = Annotated[Listed[Annotated[Count, Field(le=MAX_LENGTH)]], AfterValidator(_check_order)]


def usual_lengths(limit: int) -> tuple[int, ...]:
    """Powers of two from 256 to `limit`; or `limit` alone if that is less."""
    return tuple(2**power for power in range(8, limit.bit_length())) or (limit,)


Example = TypeVar("Example")


def equal_lengths(
    examples: Iterable[Example], length: Callable[[Example], int], most_tokens: int = BATCH_TOKENS
) -> list[list[Example]]:
    """Batches of examples with the same length in tokens, the shortest first, of at most `most_tokens` or one example."""
    batches = []
    for size, group in groupby(sorted(examples, key=length), length):
        equal = list(group)
        most = max(1, most_tokens // size)
        batches += [equal[begin : begin + most] for begin in range(0, len(equal), most)]
    return batches
