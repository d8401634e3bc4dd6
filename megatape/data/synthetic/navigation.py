"""Walking on a ring or a torus and recognizing cells (Rambaud et al. 2025).

A text such as `>c>.<c>.>f`: each step is followed by what is seen there, one of 16 symbols or a blank. Each text has its own
random map. Returning to a cell, the model must say its symbol, which requires summing all steps in between.

Source: Rambaud et al., "MapFormer: Self-Supervised Learning of Cognitive Maps with Input-Dependent Positional Embeddings",
https://arxiv.org/abs/2511.19279: 16 symbols or a blank, scoring only cells visited before; for training 128 steps on a torus
of side 64, half of it blank; for tests 64 steps, side 32 and 20% blanks, or 512 steps, side 128 and 80% blanks. Differences:
blanks are not scored, because a model always saying blank would reach 80% on `sparse`; steps to all neighbors are equally
likely; size tiny has half the steps and half the side; a ring has the side of the torus.
"""

import random
from typing import ClassVar

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

SYMBOLS = "abcdefghijklmnop"
BLANK = "."
# Number of steps in a training sample.
STEPS: dict[Size, int] = {"tiny": 64, "small": 128, "base": 128}


class Torus(SyntheticTask):
    """Write the symbol of a cell. Plotted over the distance from the last visit.

    Attributes:
        moves: Change of each coordinate, by step.
    """

    alphabet = SYMBOLS + BLANK + "<>^_"
    axis = "distance from the last visit to the answer"
    copies = True
    moves: ClassVar[dict[str, tuple[int, ...]]] = {"<": (-1, 0), ">": (1, 0), "^": (0, -1), "_": (0, 1)}

    def make_splits(self, size: Size) -> dict[str, Split]:
        trained = STEPS[size]

        def split(steps: int, side: int, blanks: float, differs: str = "") -> Split:
            return Split(2 * steps, differs, {"side": side, "blanks": blanks})

        return {
            "train": split(trained, trained // 2, 0.5),
            "dense": split(trained // 2, trained // 4, 0.2, f"{trained // 2} steps, not {trained}; 20% blanks, not 50%"),
            "sparse": split(4 * trained, trained, 0.8, f"{4 * trained} steps, not {trained}; 80% blanks, not 50%"),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        answers: list[Answer] = []
        # A walk may return only to blanks.
        while not answers:
            text, answers = self._walk(split, generator)
        return SyntheticSample(text[: answers[-1].end], tuple(answers))

    def _walk(self, split: Split, generator: random.Random) -> tuple[str, list[Answer]]:
        side = split.options["side"]
        cell = (0,) * len(self.moves["<"])
        text = ""
        answers = []
        # Cell -> index of its symbol in the text.
        visits: dict[tuple[int, ...], int] = {}
        for step in generator.choices(list(self.moves), k=split.characters // 2):
            cell = tuple((old + change) % side for old, change in zip(cell, self.moves[step], strict=True))
            text += step
            if cell not in visits:
                symbol = BLANK
                if generator.random() >= split.options["blanks"]:
                    symbol = generator.choice(SYMBOLS)
            else:
                symbol = text[visits[cell]]
                if symbol != BLANK:
                    answers.append(Answer(len(text), len(text) + 1, len(text) - visits[cell]))
            visits[cell] = len(text)
            text += symbol
        return text, answers


class Ring(Torus):
    """A walk in one dimension."""

    alphabet = SYMBOLS + BLANK + "<>"
    moves: ClassVar[dict[str, tuple[int, ...]]] = {"<": (-1,), ">": (1,)}
