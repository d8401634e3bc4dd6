"""Counting ones in regions of a text (Golkar et al. 2024).

A text such as `01[0110]0[101]1>002002`: zeros and ones, some of them in brackets; after `>` the number of ones in each pair of
brackets, in order, three digits each.

Source: Golkar et al., "Contextual Counting: A Mechanistic Study of Transformers on a Quantitative Task",
https://arxiv.org/abs/2406.02585: 4 regions without overlap, 512 characters, an encoder, and a decoder whose prompt names the
regions. Differences: a decoder alone reads the text, then writes all numbers; the smaller sizes have shorter texts, tiny has
two regions; `long` and `many` are ours, as is drawing the ends of regions uniformly.
"""

import random

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

REGIONS: dict[Size, int] = {"tiny": 2, "small": 4, "base": 4}
# With its brackets, base has 512 characters.
BITS: dict[Size, int] = {"tiny": 32, "small": 128, "base": 504}
# Number of digits in a count.
DIGITS = 3


class ContextualCounting(SyntheticTask):
    """Count the ones in a region. Plotted over their number."""

    alphabet = "0123456789[]>"
    axis = "ones in the region"

    def make_splits(self, size: Size) -> dict[str, Split]:
        regions = REGIONS[size]
        bits = BITS[size]

        def split(regions: int, bits: int, differs: str = "") -> Split:
            return Split(bits + (2 + DIGITS) * regions + 1, differs, {"regions": regions, "bits": bits})

        return {
            "train": split(regions, bits),
            "long": split(regions, 2 * bits, f"{2 * bits} zeros and ones, not {bits}"),
            "many": split(2 * regions, bits, f"{2 * regions} regions, not {regions}"),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        regions = split.options["regions"]
        bits = "".join(generator.choices("01", k=split.options["bits"]))
        ends = sorted(generator.sample(range(len(bits) + 1), 2 * regions))
        text = ""
        counts = []
        done = 0
        for begin, end in zip(ends[::2], ends[1::2], strict=True):
            text += f"{bits[done:begin]}[{bits[begin:end]}]"
            counts.append(bits.count("1", begin, end))
            done = end
        text += f"{bits[done:]}>"
        begins = range(len(text), split.characters, DIGITS)
        answers = tuple(Answer(begin, begin + DIGITS, count) for begin, count in zip(begins, counts, strict=True))
        return SyntheticSample(text + "".join(f"{count:0{DIGITS}d}" for count in counts), answers)
