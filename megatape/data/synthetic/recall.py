"""Associative recall of several pairs over a distance (Arora et al. 2023).

A text such as `AxBytkByqAxcrBy`: pairs of a key (upper case) and its value (lower case), then letters without meaning, and
among them some of those pairs again. The text ends with such a pair.

Source: Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language Models",
https://arxiv.org/abs/2312.04927, section 3 and appendix: multi-query associative recall (MQAR), with 4 to 64 pairs in 64 to
512 tokens. Differences: what is asked for is drawn anew each time, because the last of values that come once each would be
known as the one not yet used; 26 keys and 26 values instead of 8192 tokens; places of the later pairs are drawn uniformly
instead of by a power law; between them stand values alone. Splits that differ from training are ours.
"""

import random
import string

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

KEYS, VALUES = string.ascii_uppercase, string.ascii_lowercase
PAIRS: dict[Size, int] = {"tiny": 4, "small": 8, "base": 8}
ASKED: dict[Size, int] = {"tiny": 16, "small": 16, "base": 16}  # how often a value is asked for
BETWEEN: dict[Size, int] = {"tiny": 24, "small": 96, "base": 224}  # letters without meaning


class Recall(SyntheticTask):
    """Recall the value of a key. Key: characters from where it was last to the answer."""

    alphabet = KEYS + VALUES
    axis = "distance from the value to the answer"
    copies = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        pairs, asked, between = PAIRS[size], ASKED[size], BETWEEN[size]

        def split(pairs: int, between: int, differs: str = "") -> Split:
            return Split(2 * (pairs + asked) + between, differs, {"pairs": pairs, "asked": asked, "between": between})

        return {
            "train": split(pairs, between),
            "far": split(pairs, 4 * between, f"{4 * between} letters in between, not {between}"),
            "many": split(3 * pairs, between, f"{3 * pairs} pairs, not {pairs}"),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        pairs, asked, between = (split.options[name] for name in ("pairs", "asked", "between"))
        values = dict(zip(generator.sample(KEYS, pairs), generator.choices(VALUES, k=pairs), strict=True))
        text = "".join(key + value for key, value in values.items())
        filler = "".join(generator.choices(VALUES, k=between))
        # Letters in front of each later pair; the last pair has none behind it.
        places = sorted(generator.randint(0, between) for _ in range(asked - 1)) + [between]
        answers, used = [], 0
        for place, key in zip(places, generator.choices(list(values), k=asked), strict=True):
            distance = len(text) + place - used - text.rindex(key)
            text += filler[used:place] + key + values[key]
            answers.append(Answer(len(text) - 1, len(text), distance))
            used = place
        return SyntheticSample(text, tuple(answers))
