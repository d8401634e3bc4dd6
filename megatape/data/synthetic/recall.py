"""Associative recall of several pairs over a distance, with fixed or changing values (Arora et al. 2023).

A text such as `AxBytkByqAxcrBy`: pairs of a key (upper case) and its value (lower case), then meaningless letters with some of
the pairs again among them. The text ends with such a pair.

Source: Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language Models",
https://arxiv.org/abs/2312.04927, section 3 and appendix: multi-query associative recall (MQAR), with 4 to 64 pairs in 64 to
512 tokens. Differences: each question draws its key anew, because otherwise the last answer would be the only value not used
yet; 26 keys and 26 values instead of 8192 tokens; positions of later pairs are drawn uniformly instead of by a power law; only
values fill the space between them. Splits differing from training are ours.

`many_keys` has 256 keys instead of 26, and more pairs. In `reassigned_recall` a text such as `AxByAzBqByAr>AzBq` gives each key
several values, then asks, here for the last value but one (`two_back`). Sources: Tan et al., "Scaling Stick-Breaking
Attention", https://arxiv.org/abs/2410.17980: multi-query repeated associative recall (MQRAR), asking for the last value; Yang
et al., "PaTH Attention", https://arxiv.org/abs/2505.16381: asking for the N-th last value, N = 1 to 4. Differences: 26 keys and
values, questions after all assignments, drawn independently, our numbers of both, and at least four values per key.
"""

import random
import string
from typing import ClassVar

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

KEYS = string.ascii_uppercase
VALUES = string.ascii_lowercase
PAIRS: dict[Size, int] = {"tiny": 4, "small": 8, "base": 8}
# Number of questions.
ASKED: dict[Size, int] = {"tiny": 16, "small": 16, "base": 16}
# Number of meaningless letters.
BETWEEN: dict[Size, int] = {"tiny": 24, "small": 96, "base": 224}
# Minimum number of values per key in `reassigned_recall`.
LEAST = 4


class Recall(SyntheticTask):
    """Recall the value for a key. Plotted over the distance from the pair's last occurrence to the answer.

    Attributes:
        keys: All keys.
        pairs: Pairs in a training sample.
    """

    alphabet = KEYS + VALUES
    axis = "distance from the value to the answer"
    copies = True
    keys: ClassVar[str] = KEYS
    pairs: ClassVar[dict[Size, int]] = PAIRS

    def make_splits(self, size: Size) -> dict[str, Split]:
        pairs = self.pairs[size]
        asked = ASKED[size]
        between = BETWEEN[size]

        def split(pairs: int, between: int, differs: str = "") -> Split:
            options = {"pairs": pairs, "asked": asked, "between": between}
            return Split(2 * (pairs + asked) + between, differs, options)

        return {
            "train": split(pairs, between),
            "far": split(pairs, 4 * between, f"{4 * between} letters in between, not {between}"),
            "many": split(3 * pairs, between, f"{3 * pairs} pairs, not {pairs}"),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        pairs = split.options["pairs"]
        asked = split.options["asked"]
        between = split.options["between"]
        keys = generator.sample(self.keys, pairs)
        values = dict(zip(keys, generator.choices(VALUES, k=pairs), strict=True))
        text = "".join(key + value for key, value in values.items())
        filler = "".join(generator.choices(VALUES, k=between))
        # Number of letters before each later pair. The last pair ends the text.
        lengths_before = sorted(generator.randint(0, between) for _ in range(asked - 1))
        lengths_before.append(between)
        answers = []
        used = 0
        asked_keys = generator.choices(list(values), k=asked)
        for length_before, key in zip(lengths_before, asked_keys, strict=True):
            distance = len(text) + length_before - used - text.rindex(key)
            text += filler[used:length_before] + key + values[key]
            answers.append(Answer(len(text) - 1, len(text), distance))
            used = length_before
        return SyntheticSample(text, tuple(answers))


class ManyKeys(Recall):
    """Recall the value of one of 256 keys."""

    keys: ClassVar[str] = "".join(map(chr, range(0x100, 0x200)))
    alphabet = keys + VALUES
    pairs: ClassVar[dict[Size, int]] = {"tiny": 16, "small": 64, "base": 85}


class ReassignedRecall(Recall):
    """Recall a value of a key with changing values. Plotted over the distance from that value to the answer.

    Attributes:
        back: N. 1 asks for the last value of a key, 2 for the one before it.
    """

    alphabet = KEYS + VALUES + ">"
    back: ClassVar[int] = 1

    def make_splits(self, size: Size) -> dict[str, Split]:
        keys = PAIRS[size]
        further = 2 * PAIRS[size]

        def split(keys: int, further: int, differs: str = "") -> Split:
            options = {"keys": keys, "further": further, "asked": ASKED[size]}
            return Split(2 * (LEAST * keys + further + ASKED[size]) + 1, differs, options)

        return {
            "train": split(keys, further),
            "long": split(keys, 8 * further, f"{LEAST * keys + 8 * further} assignments, not {LEAST * keys + further}"),
            "many": split(3 * keys, 3 * further, f"{3 * keys} keys, not {keys}"),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        keys = generator.sample(KEYS, split.options["keys"])
        assigned = LEAST * keys + generator.choices(keys, k=split.options["further"])
        generator.shuffle(assigned)
        text = "".join(key + generator.choice(VALUES) for key in assigned) + ">"
        answers = []
        for key in generator.choices(keys, k=split.options["asked"]):
            indices = [index for index, other in enumerate(assigned) if other == key]
            source = 2 * indices[-self.back] + 1
            begin = len(text) + 1
            answers.append(Answer(begin, begin + 1, begin - source))
            text += key + text[source]
        return SyntheticSample(text, tuple(answers))


class TwoBack(ReassignedRecall):
    """Recall the last value but one."""

    back = 2


class ThreeBack(ReassignedRecall):
    """Recall the last value but two."""

    back = 3


class FourBack(ReassignedRecall):
    """Recall the last value but three."""

    back = 4
