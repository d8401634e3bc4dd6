"""Finding the letter at a distance from another one (Gopalakrishnan et al. 2025).

A text such as `qhxbdkfcw>k-03x`: distinct letters, one of them again, a shift, and the letter that many letters after it, or
before it if the shift is negative. A model has to look up a letter by content, then by position.

Source: Gopalakrishnan et al., "Decoupling the What and Where With Polar Coordinate Positional Embeddings",
https://arxiv.org/abs/2509.10534: 20 to 40 distinct letters, a shift from -15 to 15; rope reaches 11% there, pope 95%, with 8
layers and 100,000 steps. Differences: the shift is three tokens, its sign and two digits, and `long` is ours. Size tiny may
train too briefly for any encoding.
"""

import random
import string

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

# Minimum and maximum number of letters.
LETTERS = (20, 40)
LONGER = (41, len(string.ascii_letters))
# Largest shift.
FARTHEST = 15


class IndirectIndexing(SyntheticTask):
    """Write the letter at a distance from another. Plotted over the distance from that letter to the answer."""

    alphabet = string.ascii_letters + string.digits + ">+-"
    axis = "distance from the letter to the answer"
    copies = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        differs = f"{LONGER[0]} to {LONGER[1]} letters, not {LETTERS[0]} to {LETTERS[1]}"
        return {
            "train": Split(LETTERS[1] + 6, "", {"letters": LETTERS}),
            "long": Split(LONGER[1] + 6, differs, {"letters": LONGER}),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        least, most = split.options["letters"]
        num_letters = generator.randint(least, most)
        letters = "".join(generator.sample(string.ascii_letters, num_letters))
        index = generator.randrange(len(letters))
        target = generator.randint(max(0, index - FARTHEST), min(len(letters) - 1, index + FARTHEST))
        text = f"{letters}>{letters[index]}{target - index:+03d}"
        answer = Answer(len(text), len(text) + 1, len(text) - target)
        return SyntheticSample(text + letters[target], (answer,))
