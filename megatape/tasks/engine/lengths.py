"""Lengths of the tasks, in tokens."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from megatape.errors import UserError

MAX_LENGTH = 2**24  # more than anybody waits for


def parse_lengths(value: Any) -> Any:
    """The numbers of a list such as "1024,2048".

    Raises:
        UserError: They are not positive, do not ascend, or exceed MAX_LENGTH.
    """
    if not isinstance(value, str):
        return value
    lengths = tuple(int(part) if part.isdecimal() else 0 for part in value.split(","))
    if 0 in lengths or list(lengths) != sorted(set(lengths)):
        raise UserError("give lengths above 0 in ascending order, such as 1024,2048")
    if lengths[-1] > MAX_LENGTH:
        raise UserError(f"give lengths of at most {MAX_LENGTH}")
    return lengths


LengthList = Annotated[tuple[int, ...], BeforeValidator(parse_lengths)]


def usual_lengths(limit: int, first: int = 256) -> tuple[int, ...]:
    """Powers of two from `first`, which is one, to `limit`; or `limit` alone if that is less."""
    return tuple(2**power for power in range(first.bit_length() - 1, limit.bit_length())) or (limit,)
