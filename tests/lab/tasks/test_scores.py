"""Scores of answers equal those of SCROLLS' scorer."""

from statistics import fmean
from typing import Any

import pytest

from megatape.lab.tasks.scores import Metric, mean_scores, normalize, score
from tests.helpers.lab.scrolls import PREDICTIONS, REFERENCES

ROUGE_METRICS = ("rouge1", "rouge2", "rougeL")


def test_normalization() -> None:
    assert normalize(" The U.S.A.'s\tan-swer, a  THEory\n") == ["usas", "answer", "theory"]


@pytest.mark.parametrize(
    ("metric", "prediction", "references", "expected"),
    [
        pytest.param("exact_match", "The answer!", ["no", "answer"], {"exact_match": 100}, id="exact match"),
        pytest.param("f1", "b b c", ["b c c", "d"], {"f1": pytest.approx(200 / 3)}, id="F1"),
        pytest.param("f1", "the", ["a"], {"f1": 0}, id="F1 of empty texts, 0 as in the official scorer"),
        pytest.param("rouge", "", ["a"], {"rouge1": 0, "rouge2": 0, "rougeL": 0}, id="ROUGE of an empty answer"),
    ],
)
def test_scores(metric: Metric, prediction: str, references: list[str], expected: dict[str, Any]) -> None:
    assert score(metric, prediction, references) == expected


@pytest.fixture(scope="module")
def rouge_scores() -> list[dict[str, float]]:
    """Scores of 900 answers: of three answers in turn."""
    scores = []
    for prediction, references in zip(PREDICTIONS, REFERENCES, strict=True):
        scores.append(score("rouge", prediction, references))
    return scores * 300


def test_standard_error_of_a_mean(rouge_scores: list[dict[str, float]]) -> None:
    mean, error = mean_scores(rouge_scores)["rouge1"]

    squares = [(scores["rouge1"] - mean) ** 2 for scores in rouge_scores]
    assert error == pytest.approx((sum(squares) / 899 / 900) ** 0.5)


def test_standard_error_of_a_geometric_mean_equals_the_jackknife(rouge_scores: list[dict[str, float]]) -> None:
    """The jackknife leaves out one answer at a time."""
    means = []
    for index in range(3):
        others = [*rouge_scores[:index], *rouge_scores[index + 1 :]]
        mean, _ = mean_scores(others)["rouge"]
        means.append(mean)
    means *= 300
    squares = [(mean - fmean(means)) ** 2 for mean in means]

    _, error = mean_scores(rouge_scores)["rouge"]

    assert error == pytest.approx((899 / 900 * sum(squares)) ** 0.5, rel=0.01)


def test_one_answer_has_no_standard_error(rouge_scores: list[dict[str, float]]) -> None:
    assert mean_scores(rouge_scores[:1])["rouge"] == (pytest.approx(100), None)


def test_geometric_mean_of_zeros_has_no_standard_error() -> None:
    zeros = dict.fromkeys(ROUGE_METRICS, 0.0)

    assert mean_scores([zeros, zeros])["rouge"] == (0, None)
