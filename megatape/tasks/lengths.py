"""--lengths of the tasks, in tokens."""

import argparse

MAX_LENGTH = 2**24  # more than anybody waits for


def parse_lengths(text: str) -> tuple[int, ...]:
    """The numbers of a list such as "1024,2048". Raises ArgumentTypeError unless they are positive and ascend to
    at most MAX_LENGTH."""
    lengths = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if 0 in lengths or list(lengths) != sorted(set(lengths)):
        raise argparse.ArgumentTypeError(f"{text!r}: give lengths above 0 in ascending order, such as 1024,2048")
    if lengths[-1] > MAX_LENGTH:
        raise argparse.ArgumentTypeError(f"{lengths[-1]}: give lengths of at most {MAX_LENGTH}")
    return lengths


def usual_lengths(limit: int, first: int = 256) -> tuple[int, ...]:
    """Powers of two from `first`, which is one, to `limit`; or `limit` alone if that is less."""
    return tuple(2**power for power in range(first.bit_length() - 1, limit.bit_length())) or (limit,)
