"""Copying a string (by_length.py has the source: the third of its variants, whose letters are random)."""

from megatape.data.synthetic.by_length import ByLength


class Copy(ByLength):
    """Write the string again."""

    def output(self, given: str) -> str:
        return given
