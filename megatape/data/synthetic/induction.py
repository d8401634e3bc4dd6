"""Induction over a gap: a piece of text repeats after other letters (Olsson et al. 2022).

A text such as `xckqbwxxtcrmkqbw`: a piece with distinct letters, which occur nowhere else, appears twice among other letters.
A model finding a letter's previous occurrence and looking at its successor knows all letters of the repetition but the first.

Source: Olsson et al., "In-context Learning and Induction Heads", https://arxiv.org/abs/2209.11895: heads completing
[A][B] ... [A] with [B], measured on repeated random tokens. Differences: there is a gap, whose length the splits vary, and the
repeated letters occur nowhere else, so each answer is certain.
"""

import random
import string

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

# Number of repeated letters.
REPEATED = 8
# Maximum number of letters before them. With 16, and twice as many letters, size tiny was not learned.
BEFORE: dict[Size, int] = {"tiny": 4, "small": 16, "base": 16}
# Maximum number of letters between the occurrences.
GAP: dict[Size, int] = {"tiny": 32, "small": 96, "base": 240}


class Induction(SyntheticTask):
    """Continue as after the first occurrence. Plotted over the distance from the first occurrence to the answer."""

    alphabet = string.ascii_lowercase
    axis = "distance from the first occurrence to the second"
    copies = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        gap = GAP[size]
        front = BEFORE[size]

        def split(least: int, most: int, differs: str = "") -> Split:
            return Split(front + 2 * REPEATED + most, differs, {"front": front, "gap": (least, most)})

        return {
            "train": split(0, gap),
            "far": split(gap + 1, 3 * gap, f"{gap + 1} to {3 * gap} letters in between, not at most {gap}"),
            "farther": split(3 * gap + 1, 8 * gap, f"{3 * gap + 1} to {8 * gap} letters in between, not at most {gap}"),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        letters = generator.sample(self.alphabet, len(self.alphabet))
        repeated = "".join(letters[:REPEATED])
        others = letters[REPEATED:]
        before = generator.randint(0, split.options["front"])
        least, most = split.options["gap"]
        gap = generator.randint(least, most)
        between = "".join(generator.choices(others, k=before + gap))
        text = f"{between[:before]}{repeated}{between[before:]}{repeated}"
        # The first letter of the second occurrence cannot be predicted.
        indices = range(len(text) - REPEATED + 1, len(text))
        return SyntheticSample(text, tuple(Answer(index, index + 1, REPEATED + gap) for index in indices))
