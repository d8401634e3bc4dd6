"""A suite task that models learn in three steps."""

import random
from typing import ClassVar, Literal

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask
from megatape.lab.study.suite.sizes import ModelShape, Sizing

QUICK = Sizing(
    model=ModelShape(num_layers=2, hidden_size=16, num_heads=2, mlp_size=16, position_size=8, init_std=0.02),
    tokens=3 * 4 * 6,
    batch=4,
    precision="float32",
    rates=(1e-3, 1e-2),
    rate=1e-3,
    validation=8,
    test=6,
)


class Capitals(SyntheticTask):
    """Letters, each followed by its capital: `aAbB`. The key of an answer is the number of its letter."""

    alphabet = "abcABC"
    axis = "letter"
    scored: ClassVar[Literal["answers", "samples"]] = "answers"
    answers_end = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        return {"train": Split(4), "test": Split(4), "long": Split(12, "longer")}

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        letters = generator.choices("abc", k=generator.randint(1, split.characters // 2))
        text = "".join(letter + letter.upper() for letter in letters)
        answers = tuple(Answer(2 * index + 1, 2 * index + 2, index) for index in range(len(letters)))
        return SyntheticSample(text, answers)


class WholeCapitals(Capitals):
    """Capitals task scoring a sample as right if all its answers are."""

    scored: ClassVar[Literal["answers", "samples"]] = "samples"
