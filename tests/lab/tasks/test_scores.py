"""Scores are those of SCROLLS' scorer."""

from statistics import fmean

import pytest

from megatape.lab.tasks.scores import mean_scores, normalize, score
from tests.helpers.lab.scrolls import PREDICTIONS, REFERENCES


def test_normalization() -> None:
    assert normalize(" The U.S.A.'s\tan-swer, a  THEory\n") == ["usas", "answer", "theory"]
    assert score("exact_match", "The answer!", ["no", "answer"]) == {"exact_match": 100}
    assert score("f1", "b b c", ["b c c", "d"]) == {"f1": pytest.approx(200 / 3)}
    assert score("f1", "the", ["a"]) == {"f1": 0}  # as the official scorer has it, though these match
    assert score("rouge", "", ["a"]) == dict.fromkeys(("rouge1", "rouge2", "rougeL"), 0)


def test_standard_errors() -> None:
    """Of the geometric mean as the jackknife has it: from leaving out an answer at a time."""
    scores = [score("rouge", *both) for both in zip(PREDICTIONS, REFERENCES, strict=True)] * 300
    mean, error = mean_scores(scores)["rouge1"]
    assert error == pytest.approx((sum((each["rouge1"] - mean) ** 2 for each in scores) / 899 / 900) ** 0.5)
    without = [mean_scores([*scores[:place], *scores[place + 1 :]])["rouge"][0] for place in range(3)] * 300
    jackknife = (899 / 900 * sum((each - fmean(without)) ** 2 for each in without)) ** 0.5
    assert mean_scores(scores)["rouge"][1] == pytest.approx(jackknife, rel=0.01)
    assert mean_scores(scores[:1])["rouge"] == (pytest.approx(100), None)
    assert mean_scores([dict.fromkeys(("rouge1", "rouge2", "rougeL"), 0.0)] * 2)["rouge"] == (0, None)
