"""Multiplying elements of a group (Merrill et al. 2024, Siems et al. 2025, Yang et al. 2025).

A text such as `bbcdad`, for the elements b, c and a: each element is followed by the product so far. The model never reads
these answers, but an end token instead. In `word_a5` a text such as `xYyx=0`: a word over two generators and their
inverses (upper case), and whether it is the identity.

Sources: Merrill et al., "The Illusion of State in State-Space Models", https://arxiv.org/abs/2404.08819: word problems of
groups with an answer at every element, complete for NC1 if the group is not solvable, such as A5 and S5. Siems et al.,
"DeltaProduct", https://arxiv.org/abs/2502.10297: S3, A5 and S5, 128 elements for training and up to 512 for tests. Differences:
size tiny has 32 and 128; answers are separate tokens, so a text has twice as many tokens as elements. Yang et al., "PaTH
Attention", https://arxiv.org/abs/2505.16381: a word over generators of A5 and their inverses, and whether it is the identity.
Differences: our generators and lengths; half of the words are identities, and words with the same length and answer are equally
likely.
"""

import itertools
import random
import string
from functools import cache
from typing import ClassVar

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

Permutation = tuple[int, ...]

# Symbols for up to 120 elements.
SYMBOLS = string.ascii_letters + string.digits + "".join(map(chr, range(0x100, 0x13A)))
# Number of elements in a training sample.
ELEMENTS: dict[Size, int] = {"tiny": 32, "small": 128, "base": 128}
GENERATORS: dict[str, Permutation] = {
    "x": (1, 2, 0, 3, 4),
    "y": (1, 2, 3, 4, 0),
    "X": (2, 0, 1, 3, 4),
    "Y": (4, 0, 1, 2, 3),
}
# Minimum and maximum word length.
LETTERS: dict[Size, tuple[int, int]] = {"tiny": (6, 16), "small": (6, 32), "base": (6, 32)}


def compose(then: Permutation, first: Permutation) -> Permutation:
    """Return the permutation applying `first`, then `then`."""
    return tuple(then[point] for point in first)


def num_inversions(permutation: Permutation) -> int:
    """Return the number of pairs of points whose order a permutation reverses."""
    return sum(first > second for first, second in itertools.combinations(permutation, 2))


class StateTracking(SyntheticTask):
    """Write the product of all elements so far. Plotted over their number.

    Attributes:
        elements: Group elements. The first one is the identity.
    """

    axis = "elements so far"
    hides_answers = True
    elements: ClassVar[list[Permutation]]

    def make_splits(self, size: Size) -> dict[str, Split]:
        trained = ELEMENTS[size]
        return {"train": Split(2 * trained), "long": Split(8 * trained, f"{4 * trained} elements, not {trained}")}

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        symbols = dict(zip(self.elements, self.alphabet, strict=True))
        text = ""
        product = self.elements[0]
        for element in generator.choices(self.elements, k=split.characters // 2):
            product = compose(element, product)
            text += symbols[element] + symbols[product]
        indices = range(1, len(text), 2)
        return SyntheticSample(text, tuple(Answer(index, index + 1, (index + 1) // 2) for index in indices))


class S3(StateTracking):
    """The permutations of three points, a solvable group."""

    elements: ClassVar[list[Permutation]] = list(itertools.permutations(range(3)))
    alphabet = SYMBOLS[: len(elements)]


class S5(StateTracking):
    """The permutations of five points."""

    elements: ClassVar[list[Permutation]] = list(itertools.permutations(range(5)))
    alphabet = SYMBOLS[: len(elements)]


class A5(StateTracking):
    """The even permutations of five points, the smallest non-solvable group."""

    elements: ClassVar[list[Permutation]] = [each for each in S5.elements if num_inversions(each) % 2 == 0]
    alphabet = SYMBOLS[: len(elements)]


@cache
def identities(start: Permutation, length: int) -> int:
    """Return the number of words with this length taking `start` to the identity."""
    if length == 0:
        return int(start == A5.elements[0])
    return sum(identities(compose(letter, start), length - 1) for letter in GENERATORS.values())


class WordA5(SyntheticTask):
    """Say whether a word is the identity of A5. Plotted over its length."""

    alphabet = "".join(GENERATORS) + "=01"
    axis = "length of the word"

    def make_splits(self, size: Size) -> dict[str, Split]:
        least, most = LETTERS[size]
        longest = 2 * most
        differs = f"{most + 1} to {longest} letters, not {least} to {most}"
        return {
            "train": Split(most + 2, "", {"letters": (least, most)}),
            "long": Split(longest + 2, differs, {"letters": (most + 1, longest)}),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        length = generator.randint(*split.options["letters"])
        is_identity = generator.random() < 1 / 2
        product = A5.elements[0]
        word = ""
        for num_left in range(length - 1, -1, -1):
            products = {letter: compose(element, product) for letter, element in GENERATORS.items()}
            # Weighting each letter by the number of words continuing to the right answer makes all such words equally likely.
            weights = [identities(next_product, num_left) for next_product in products.values()]
            if not is_identity:
                weights = [len(GENERATORS) ** num_left - words for words in weights]
            (letter,) = generator.choices(list(products), weights)
            product = products[letter]
            word += letter
        return SyntheticSample(f"{word}={int(is_identity)}", (Answer(length + 1, length + 2, length),))
