"""A string and a function of it, by the length of the string (Kazemnejad et al. 2023).

A text such as `cab>bac`: letters, `>`, and an output that ends with the end token, so a model must know where to stop.

Source: Kazemnejad et al., "The Impact of Positional Encoding on Length Generalization in Transformers",
https://arxiv.org/abs/2305.19466, section 3 and appendix D.1: lengths are drawn uniformly from 1 to L for training and from 1
to 2L for tests, L = 20, and a sample counts if its whole output is right. Differences: a separator instead of words around
the string, letters instead of a vocabulary of subwords, the lengths 1 to L and L + 1 to 2L are two splits, and `few` is ours.
"""

import random
import string
from abc import abstractmethod
from typing import ClassVar, Literal

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

SEPARATOR = ">"
FEW = 3


class ByLength(SyntheticTask):
    """Write a function of a string. Key: the string's length.

    Attributes:
        letters: Of the strings.
        longest: L, the longest string in training.
    """

    axis = "length of the string"
    scored: ClassVar[Literal["samples"]] = "samples"
    answers_end = True
    letters = string.ascii_lowercase
    alphabet = letters + SEPARATOR
    longest: ClassVar[dict[Size, int]] = {"tiny": 20, "small": 20, "base": 20}

    @abstractmethod
    def output(self, given: str) -> str:
        """The function."""

    def make_splits(self, size: Size) -> dict[str, Split]:
        longest, letters = self.longest[size], len(self.letters)

        def split(least: int, most: int, letters: int = letters, differs: str = "") -> Split:
            characters = most + 1 + len(self.output(self.letters[0] * most))
            return Split(characters, differs, {"lengths": (least, most), "letters": letters})

        splits = {
            "train": split(1, longest),
            "long": split(longest + 1, 2 * longest, differs=f"{longest + 1} to {2 * longest} letters, not 1 to {longest}"),
        }
        if letters > FEW:
            splits["few"] = split(1, longest, FEW, f"strings of at most {FEW} different letters, not {letters}")
        return splits

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        length = generator.randint(*split.options["lengths"])
        letters = self.letters
        if split.options["letters"] < len(letters):
            letters = "".join(generator.sample(letters, split.options["letters"]))
        given = "".join(generator.choices(letters, k=length))
        text = f"{given}{SEPARATOR}{self.output(given)}"
        return SyntheticSample(text, (Answer(length + 1, len(text), length),))
