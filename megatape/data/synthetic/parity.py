"""The parity of a string of bits (by_length.py has the source, whose answers are Yes and No).

Delétang et al., "Neural Networks and the Chomsky Hierarchy", https://arxiv.org/abs/2207.02098, have the same task with lengths
1 to 40 for training and 41 to 500 for tests, a model that sees the whole string at once, and no end token. Here training stops
at length 10 or 12 for the smaller sizes, whose steps are not enough for longer strings.
"""

from typing import ClassVar

from megatape.data.synthetic.by_length import SEPARATOR, ByLength
from megatape.data.synthetic.task import Size


class Parity(ByLength):
    """Write 1 if the number of ones is odd, else 0."""

    letters = "01"
    alphabet = letters + SEPARATOR
    longest: ClassVar[dict[Size, int]] = {"tiny": 10, "small": 12, "base": 20}

    def output(self, given: str) -> str:
        return f"{given.count('1') % 2}"
