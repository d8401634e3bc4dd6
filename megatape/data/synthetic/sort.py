"""Sorting the letters of a string.

by_length.py has the source: its variant `Single Token`, with 26 tokens instead of 50, and at size tiny, whose steps are too
few, with strings of at most 10.
"""

from typing import ClassVar

from megatape.data.synthetic.by_length import ByLength
from megatape.data.synthetic.task import Size


class Sort(ByLength):
    """Write the letters in the order of the alphabet."""

    longest: ClassVar[dict[Size, int]] = {"tiny": 10, "small": 20, "base": 20}

    def output(self, given: str) -> str:
        return "".join(sorted(given))
