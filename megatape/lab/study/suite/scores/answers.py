"""Scoring: counting the answers or samples whose tokens are all right."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from megatape.data.synthetic.task import SyntheticSample, SyntheticTask


class KeyCounts(NamedTuple):
    """Counts of right and asked answers with one key, such as a length or distance."""

    key: int
    right: int
    asked: int


@dataclass(frozen=True)
class AnswerCounts:
    """Counts of a model's answers on one split, sorted by key."""

    by_key: tuple[KeyCounts, ...]

    @property
    def asked(self) -> int:
        """Number of answers."""
        return sum(counts.asked for counts in self.by_key)

    @property
    def score(self) -> float:
        """Share of right answers, 0 to 1."""
        return sum(counts.right for counts in self.by_key) / self.asked


def answer_places(task: SyntheticTask, sample: SyntheticSample) -> list[range]:
    """Return the text positions of each answer's tokens. The end token's position is the text length."""
    places = [range(answer.begin, answer.end) for answer in sample.answers]
    if task.answers_end:
        last = places[-1]
        places[-1] = range(last.start, last.stop + 1)
    return places


def token_places(task: SyntheticTask, sample: SyntheticSample) -> list[int]:
    """Return the text positions of all answers' tokens, in order."""
    return list(chain.from_iterable(answer_places(task, sample)))


def count_answers(
    task: SyntheticTask,
    samples: Sequence[SyntheticSample],
    predicted: Sequence[Sequence[bool]],
) -> AnswerCounts:
    """Count the right answers on a split.

    An answer is right if all its tokens are. In a task scoring samples, a sample is right if all its answers are, and its key
    is that of its last answer.

    Args:
        task: Task that the samples belong to.
        samples: Samples to score.
        predicted: For each sample, whether each answer token was predicted, in order.
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
        for key, is_right in zip(keys, answers, strict=True):
            right[key] += is_right
            asked[key] += 1
    return AnswerCounts(tuple(KeyCounts(key, right[key], asked[key]) for key in sorted(asked)))
