"""Closing brackets of several kinds in the right order: Dyck-k (Hewitt et al. 2020, Yao et al. 2021).

A text such as `([])<{}>`: wherever a bracket closes, the model must name its kind, that of the last one still open.

Sources: Hewitt et al., "RNNs can generate bounded hierarchical languages with optimal memory",
https://arxiv.org/abs/2010.07515, and Yao et al., "Self-Attention Networks Can Process Bounded Hierarchical Languages",
https://arxiv.org/abs/2105.11115: k kinds of brackets, scoring closing brackets. Differences: four kinds, a depth bounded only
by the length, our lengths and splits, and one score over all answers, not a mean over distances. Whether a bracket closes need
not be predicted. Answers count only while brackets of several kinds are open: otherwise counting each kind, in any order, would
tell which closes.
"""

import random

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
# Number of bracket pairs in a training sample.
PAIRS: dict[Size, int] = {"tiny": 24, "small": 64, "base": 128}


class Dyck(SyntheticTask):
    """Close the last open bracket. Plotted over the distance from that bracket to the answer."""

    alphabet = "".join(opening + closing for opening, closing in CLOSING.items())
    axis = "distance from the opening bracket"

    def make_splits(self, size: Size) -> dict[str, Split]:
        pairs = PAIRS[size]
        return {
            "train": Split(2 * pairs, "", {"opens": 1 / 2}),
            "long": Split(6 * pairs, f"{3 * pairs} pairs, not {pairs}", {"opens": 1 / 2}),
            "deep": Split(2 * pairs, "a bracket opens with probability 3/4, not 1/2", {"opens": 3 / 4}),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        answers: list[Answer] = []
        while not answers:
            text, answers = self._word(split, generator)
        return SyntheticSample(text[: answers[-1].end], tuple(answers))

    def _word(self, split: Split, generator: random.Random) -> tuple[str, list[Answer]]:
        text = ""
        answers = []
        # Places of the open brackets.
        still_open: list[int] = []
        while len(text) < split.characters:
            free = split.characters - len(text) - len(still_open)
            if free and (not still_open or generator.random() < split.options["opens"]):
                still_open.append(len(text))
                text += generator.choice(list(CLOSING))
                continue
            kinds = {text[index] for index in still_open}
            source = still_open.pop()
            if len(kinds) > 1:
                answers.append(Answer(len(text), len(text) + 1, len(text) - source))
            text += CLOSING[text[source]]
        return text, answers
