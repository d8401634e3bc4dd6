"""Reversing a string (by_length.py has the source: the first of its variants)."""

from megatape.data.synthetic.by_length import ByLength


class Reverse(ByLength):
    """Write the string backwards."""

    def output(self, given: str) -> str:
        return given[::-1]
