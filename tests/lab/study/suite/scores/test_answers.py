"""Scores of answers."""

from megatape.data.synthetic.task import Answer, SyntheticSample
from megatape.lab.study.suite.scores.answers import KeyCounts, count_answers
from tests.helpers.lab.capitals import Capitals, WholeCapitals

SAMPLES = [
    SyntheticSample("aabab", (Answer(1, 3, 1), Answer(4, 5, 2))),
    SyntheticSample("aaba", (Answer(1, 2, 1), Answer(3, 4, 3))),
]
# In the first sample, the model predicts both tokens of the first answer and the token of the last one, but not its end.
FIRST_SAMPLE = [True, True, True, False]


def test_answer_is_right_if_all_its_tokens_are() -> None:
    second_sample = [False, True, True]

    counts = count_answers(Capitals("capitals", "tiny"), SAMPLES, [FIRST_SAMPLE, second_sample])

    assert counts.by_key == (KeyCounts(1, 1, 2), KeyCounts(2, 0, 1), KeyCounts(3, 1, 1))
    assert counts.asked == 4
    assert counts.score == 2 / 4


def test_sample_is_right_if_all_its_answers_are() -> None:
    """A sample counts under the key of its last answer."""
    second_sample = [True, True, True]

    counts = count_answers(WholeCapitals("capitals", "tiny"), SAMPLES, [FIRST_SAMPLE, second_sample])

    assert counts.by_key == (KeyCounts(2, 0, 1), KeyCounts(3, 1, 1))
    assert counts.asked == 2
    assert counts.score == 1 / 2
