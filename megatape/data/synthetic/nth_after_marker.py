"""Finding the n-th token after a marker.

A text such as `qhx#bdkfcw?3k?1b`: random letters, one `#` among them, and questions at the end. After `?3` follows the third
letter after `#`, so a model has to address a token by its distance from another one, wherever the two are.

This definition is ours; we know of no publication using it. It tests access by index, which transformers lack according to
Ebrahimi et al., "Your Context Is Not an Array: Unveiling Random Access Limitations in Transformers",
https://arxiv.org/abs/2408.05506.
"""

import random
import string

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

LETTERS = string.ascii_lowercase
MARKER = "#"
QUESTION = "?"
# Largest n, which is also the number of questions.
FARTHEST: dict[Size, int] = {"tiny": 4, "small": 9, "base": 9}
# Maximum number of letters before the marker, and after the letters being asked for.
AROUND: dict[Size, int] = {"tiny": 16, "small": 64, "base": 256}


class NthAfterMarker(SyntheticTask):
    """Write the n-th letter after the marker. Plotted over the distance from that letter to the answer."""

    alphabet = LETTERS + string.digits[1:] + MARKER + QUESTION
    axis = "distance from the letter to the answer"
    copies = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        farthest = FARTHEST[size]
        around = AROUND[size]

        def split(before: tuple[int, int], after: tuple[int, int], differs: str = "") -> Split:
            characters = before[1] + 1 + farthest + after[1] + 3 * farthest
            return Split(characters, differs, {"before": before, "after": after, "farthest": farthest})

        trained = (0, around)
        more = (around + 1, 3 * around)
        return {
            "train": split(trained, trained),
            "late": split(more, trained, f"{more[0]} to {more[1]} letters before the marker, not at most {around}"),
            "far": split(trained, more, f"{more[0]} to {more[1]} letters before the questions, not at most {around}"),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        farthest = split.options["farthest"]
        before = generator.randint(*split.options["before"])
        after = generator.randint(*split.options["after"])
        letters = "".join(generator.choices(LETTERS, k=before + farthest + after))
        text = f"{letters[:before]}{MARKER}{letters[before:]}"
        answers = []
        for n in generator.sample(range(1, farthest + 1), farthest):
            index = len(text) + 2
            answers.append(Answer(index, index + 1, index - before - n))
            text += f"{QUESTION}{n}{text[before + n]}"
        return SyntheticSample(text, tuple(answers))
