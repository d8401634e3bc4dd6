"""Addition with reversed digits, by the number of digits (McLeish et al. 2024; format in addition_problems.py).

A text such as `321+54=861`: both numbers and their sum start with the least significant digit. A tenth of the problems with
operands of any two lengths never occurs in the training split.

Source: McLeish et al., "Transformers Can Do Arithmetic with the Right Embeddings", https://arxiv.org/abs/2405.17399, and Zhu et
al., https://arxiv.org/abs/2501.00712, section 4.1, who train to 20 digits and test to 40 (size base) or train to 40 and test to
80, drawing both lengths independently. Differences: problems are held out, and the longer number decides the split.
"""

import random
from typing import ClassVar, Literal

from megatape.data.synthetic.addition_problems import ALPHABET, AdditionTask, draw_problem
from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

DIGITS: dict[Size, int] = {"tiny": 4, "small": 10, "base": 20}
# Holding out a problem depends on the problem and the seed alone.
HELD_OUT = AdditionTask(digits=1, per_cell=1, seed=0).held_out


class Addition(SyntheticTask):
    """Write the sum. Plotted over the digits of the longer number."""

    alphabet = ALPHABET
    axis = "digits of the longer number"
    scored: ClassVar[Literal["samples"]] = "samples"
    answers_end = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        digits = DIGITS[size]

        def split(least: int, most: int, held_out: bool = False, differs: str = "") -> Split:
            return Split(3 * most + 3, differs, {"digits": (least, most), "held_out": held_out})

        longer = f"{digits + 1} to {2 * digits} digits, not 1 to {digits}"
        return {
            "train": split(1, digits),
            "held_out": split(1, digits, True, "problems that are never in the training split"),
            "long": split(digits + 1, 2 * digits, True, longer),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        least, most = split.options["digits"]
        while True:
            lengths = (generator.randint(1, most), generator.randint(1, most))
            if max(lengths) < least:
                continue
            problem = draw_problem(generator, lengths)
            if HELD_OUT(problem) == split.options["held_out"]:
                break
        text = problem.prompt + problem.answer
        answer = Answer(len(problem.prompt), len(text), max(lengths))
        return SyntheticSample(text, (answer,))
