"""Copying the letters in a text, skipping blanks (Gu & Dao 2023, Golovneva et al. 2024).

A text such as `b..ad.>bad`: letters at random positions among blanks, then the letters alone.

Source: Gu & Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", https://arxiv.org/abs/2312.00752,
section 4.1.1: 16 tokens from a vocabulary of 16 in a text of 4096. Golovneva et al., "Contextual Position Encoding: Learning to
Count What's Important", https://arxiv.org/abs/2405.18719, test position encodings on it with 128 tokens and 128 blanks, and out
of distribution with 256 (sparse) and 64 blanks (dense), which is our size base. Differences: the smaller sizes have fewer
of both, and `sparser` is ours.
"""

import random

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

LETTERS = "abcdefghijklmnop"
BLANK = "."
SEPARATOR = ">"
# Number of letters. Training samples have as many blanks.
COPIED: dict[Size, int] = {"tiny": 16, "small": 32, "base": 128}


class SelectiveCopy(SyntheticTask):
    """Repeat the letters. Plotted over the distance from a letter to its copy."""

    alphabet = LETTERS + BLANK + SEPARATOR
    axis = "distance from a letter to its copy"
    copies = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        letters = COPIED[size]

        def split(blanks: int, differs: str = "") -> Split:
            return Split(2 * letters + blanks + 1, differs, {"letters": letters, "blanks": blanks})

        splits = {"train": split(letters)}
        num_blanks = {"dense": letters // 2, "sparse": 2 * letters, "sparser": 8 * letters}
        for name, blanks in num_blanks.items():
            splits[name] = split(blanks, f"{blanks} blanks, not {letters}")
        return splits

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        count = split.options["letters"]
        blanks = split.options["blanks"]
        letters = generator.choices(LETTERS, k=count)
        indices = sorted(generator.sample(range(count + blanks), count))
        text = [BLANK] * (count + blanks) + [SEPARATOR, *letters]
        answers = []
        for copy, (index, letter) in enumerate(zip(indices, letters, strict=True), start=count + blanks + 1):
            text[index] = letter
            answers.append(Answer(copy, copy + 1, copy - index))
        return SyntheticSample("".join(text), tuple(answers))
