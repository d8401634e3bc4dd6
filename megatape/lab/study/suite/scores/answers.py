"""Score of a model's answers: the share of samples or answers whose tokens are all right."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from typing import NamedTuple

from megatape.data.synthetic.task import SyntheticSample, SyntheticTask


class Score(NamedTuple):
    """Score of a model on one split.

    Attributes:
        score: Share of right answers.
        asked: Number of answers.
        curve: Key, right answers and number of answers, by the answers' key.
    """

    score: float
    asked: int
    curve: tuple[tuple[int, int, int], ...]


def answer_places(task: SyntheticTask, sample: SyntheticSample) -> list[range]:
    """Return the places in the text of each answer's tokens. The place of the end token is the text's length."""
    places = [range(answer.begin, answer.end) for answer in sample.answers]
    if task.answers_end:
        last = places[-1]
        places[-1] = range(last.start, last.stop + 1)
    return places


def token_places(task: SyntheticTask, sample: SyntheticSample) -> list[int]:
    """Return the places in the text of the tokens of all answers, in order."""
    return list(chain.from_iterable(answer_places(task, sample)))


def score_answers(task: SyntheticTask, samples: Sequence[SyntheticSample], predicted: Sequence[Sequence[bool]]) -> Score:
    """Return the score of a split.

    An answer is right if all of its tokens are. In a task that scores samples, a sample is right if all of its answers are, and
    it has the key of its last answer.

    Args:
        task: The task.
        samples: Samples of the split.
        predicted: For each sample, whether each token of its answers was predicted, in order.
    """
    right = Counter[int]()
    asked = Counter[int]()
    for sample, tokens in zip(samples, predicted, strict=True):
        lengths = [len(places) for places in answer_places(task, sample)]
        assert len(tokens) == sum(lengths), f"{len(tokens)} tokens for answers of {lengths}"
        following = iter(tokens)
        answers = [all(list(islice(following, length))) for length in lengths]
        keys = [answer.key for answer in sample.answers]
        if task.scored == "samples":
            answers = [all(answers)]
            keys = keys[-1:]
        for key, answer in zip(keys, answers, strict=True):
            right[key] += answer
            asked[key] += 1
    curve = tuple((key, right[key], asked[key]) for key in sorted(asked))
    return Score(right.total() / asked.total(), asked.total(), curve)
