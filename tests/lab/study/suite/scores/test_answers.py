"""Scores of answers."""

import pytest

from megatape.data.synthetic.task import Answer, SyntheticSample
from megatape.lab.study.suite.scores.answers import count_answers
from tests.helpers.lab.capitals import Capitals, WholeCapitals


@pytest.mark.parametrize(
    ("kind", "curve"), [(Capitals, ((1, 1, 2), (2, 0, 1), (3, 1, 1))), (WholeCapitals, ((2, 0, 1), (3, 1, 1)))]
)
def test_answer_is_right_if_all_its_tokens_are(kind: type[Capitals], curve: tuple[tuple[int, int, int], ...]) -> None:
    samples = [
        SyntheticSample("aabab", (Answer(1, 3, 1), Answer(4, 5, 2))),
        SyntheticSample("aaba", (Answer(1, 2, 1), Answer(3, 4, 3))),
    ]
    # The first: both tokens, the last token, no end. The second: one that is wrong only where answers count, and all else.
    right = [[True, True, True, False], [kind is WholeCapitals, True, True]]
    counts = count_answers(kind("capitals", "tiny"), samples, right)
    assert counts.by_key == curve
    assert counts.asked == sum(each[2] for each in curve)
    assert counts.score == sum(each[1] for each in curve) / counts.asked
