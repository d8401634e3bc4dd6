"""Flip-flop language modeling: remembering one bit, with instructions to write, ignore and read (Liu et al. 2023).

A text such as `w1i0i1r1w0r0`: a bit follows every instruction. After `r` it is the bit after the last `w`; all others are
random. The first instruction is `w`, the last is `r`.

Source: Liu et al., "Exposing Attention Glitches with Flip-Flop Language Modeling", https://arxiv.org/abs/2306.00946, section 3:
their FFL(T, p), with T = 512 and p(ignore) = 0.8 for training and 0.98 (sparse) and 0.1 (dense) for tests. Differences: T is
smaller at the smaller sizes, two splits are three times as long, and only the bits after `r` are learned.
"""

import random

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

# Number of (instruction, bit) pairs in a training sample.
PAIRS: dict[Size, int] = {"tiny": 64, "small": 128, "base": 256}
# Probabilities of `i`. The others are split evenly between `w` and `r`.
IGNORE = 0.8
SPARSE = 0.98
DENSE = 0.1


class FlipFlop(SyntheticTask):
    """Read the last written bit. Plotted over the distance from the written bit to the bit read."""

    alphabet = "wir01"
    axis = "distance from the bit written to the bit read"
    copies = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        def split(times: int, ignore: float, differs: str = "") -> Split:
            return Split(times * 2 * PAIRS[size], differs, {"ignore": ignore})

        return {
            "train": split(1, IGNORE),
            "sparse": split(1, SPARSE, "98% of the bits are ignored, not 80%"),
            "dense": split(1, DENSE, "10% of the bits are ignored, not 80%"),
            "long": split(3, IGNORE, "three times as long"),
            "long_sparse": split(3, SPARSE, "three times as long, and 98% of the bits are ignored"),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        ignore = split.options["ignore"]
        write_or_read = (1 - ignore) / 2
        between = generator.choices("wri", (write_or_read, write_or_read, ignore), k=split.characters // 2 - 2)
        text = ""
        answers = []
        written = 0
        for instruction in ["w", *between, "r"]:
            bit = len(text) + 1
            if instruction == "r":
                answers.append(Answer(bit, bit + 1, bit - written))
                text += f"r{text[written]}"
            else:
                text += f"{instruction}{generator.choice('01')}"
            if instruction == "w":
                written = bit
        return SyntheticSample(text, tuple(answers))
