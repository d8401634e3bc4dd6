"""A string and a function of it, by the length of the string (Kazemnejad et al. 2023).

A text such as `cab>bac`: letters, `>`, and an output ending with the end token, so a model must know where to stop.

Source: Kazemnejad et al., "The Impact of Positional Encoding on Length Generalization in Transformers",
https://arxiv.org/abs/2305.19466, section 3 and appendix D.1, draws lengths uniformly from 1 to L for training and from 1
to 2L for tests, L = 20, and counts a sample if its whole output is right. Differences: a separator instead of words around
the string, letters instead of subwords, two splits for lengths 1 to L and L + 1 to 2L, and `few` is ours.
"""

import random
from abc import abstractmethod
from string import ascii_lowercase
from typing import ClassVar, Literal

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

SEPARATOR = ">"
# Number of different letters in the split `few`.
FEW = 3


class ByLength(SyntheticTask):
    """Write a function of a string. Plotted over the string's length.

    Attributes:
        letters: Letters in the strings.
        longest: L, the maximum length in training.
    """

    axis = "length of the string"
    scored: ClassVar[Literal["samples"]] = "samples"
    answers_end = True
    letters = ascii_lowercase
    alphabet = letters + SEPARATOR
    longest: ClassVar[dict[Size, int]] = {"tiny": 20, "small": 20, "base": 20}

    @abstractmethod
    def output(self, string: str) -> str:
        """Return the output for a string."""

    def make_splits(self, size: Size) -> dict[str, Split]:
        longest = self.longest[size]
        letters = len(self.letters)

        def split(least: int, most: int, letters: int = letters, differs: str = "") -> Split:
            characters = most + 1 + len(self.output(self.letters[0] * most))
            return Split(characters, differs, {"lengths": (least, most), "letters": letters})

        longer = f"{longest + 1} to {2 * longest} letters, not 1 to {longest}"
        splits = {
            "train": split(1, longest),
            "long": split(longest + 1, 2 * longest, differs=longer),
        }
        if letters > FEW:
            splits["few"] = split(1, longest, FEW, f"strings of at most {FEW} different letters, not {letters}")
        return splits

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        shortest, longest = split.options["lengths"]
        length = generator.randint(shortest, longest)
        letters = self.letters
        if split.options["letters"] < len(letters):
            letters = "".join(generator.sample(letters, split.options["letters"]))
        string = "".join(generator.choices(letters, k=length))
        text = f"{string}{SEPARATOR}{self.output(string)}"
        return SyntheticSample(text, (Answer(length + 1, len(text), length),))


class Copy(ByLength):
    """Repeat the string: the source's third variant, with random letters."""

    def output(self, string: str) -> str:
        return string


class Reverse(ByLength):
    """Write the string backwards: the source's first variant."""

    def output(self, string: str) -> str:
        return string[::-1]


class Sort(ByLength):
    """Sort the letters.

    This is the source's variant `Single Token`, with 26 tokens instead of 50. Size tiny trains too briefly for long strings, so
    its strings have at most 10 letters.
    """

    longest: ClassVar[dict[Size, int]] = {"tiny": 10, "small": 20, "base": 20}

    def output(self, string: str) -> str:
        return "".join(sorted(string))


class Parity(ByLength):
    """Write 1 if the number of ones is odd, else 0. The source's answers are Yes and No.

    Delétang et al., "Neural Networks and the Chomsky Hierarchy", https://arxiv.org/abs/2207.02098, have the same task with
    lengths 1 to 40 for training and 41 to 500 for tests, a model seeing the whole string at once, and no end token. Here the
    smaller sizes train too briefly for long strings, so their lengths stop at 10 or 12.
    """

    letters = "01"
    alphabet = letters + SEPARATOR
    longest: ClassVar[dict[Size, int]] = {"tiny": 10, "small": 12, "base": 20}

    def output(self, string: str) -> str:
        return f"{string.count('1') % 2}"
