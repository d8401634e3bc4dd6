"""Scores of text answers as defined by SCROLLS (arXiv 2201.03533), in points from 0 to 100.

If an answer has several references, the best score counts. F1 and exact match compare normalized words, as in SQuAD.
"""

import re
import string
from collections import Counter
from functools import lru_cache
from math import prod, sqrt
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

Metric = Literal["f1", "exact_match", "rouge"]
# Metric -> name in tables.
METRICS: dict[Metric, str] = {"f1": "F1", "exact_match": "EM", "rouge": "ROUGE"}
ROUGE = ("rouge1", "rouge2", "rougeL")
# Name of the three ROUGE means' geometric mean.
GEOMETRIC_MEAN = "rouge"

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class MeanScore(NamedTuple):
    """A score's mean over all answers, and its standard error, None if undefined."""

    mean: float
    error: float | None


def normalize(text: str) -> list[str]:
    """Split a text into lower-case words without punctuation and articles."""
    plain = text.lower().translate(_PUNCTUATION)
    return _ARTICLES.sub(" ", plain).split()


def score(metric: Metric, prediction: str, references: list[str]) -> dict[str, float]:
    """Score an answer.

    Args:
        metric: The set's metric.
        prediction: The answer.
        references: Right answers. Each score takes the best match.

    Returns:
        Scores by name: `f1` or `exact_match`, or `rouge1`, `rouge2` and `rougeL`.

    Raises:
        ModuleNotFoundError: The package rouge_score is missing, which `rouge` needs.
    """
    if metric == "rouge":
        by_reference = [rouge_scorer().score(reference, prediction) for reference in references]
        scores = {}
        for name in ROUGE:
            scores[name] = 100.0 * max(each[name].fmeasure for each in by_reference)
        return scores

    words = normalize(prediction)
    reference_words = [normalize(reference) for reference in references]
    if metric == "f1":
        return {metric: 100 * max(_f1(words, each) for each in reference_words)}
    is_exact = words in reference_words
    return {metric: 100.0 * is_exact}


def mean_scores(scores: list[dict[str, float]]) -> dict[str, MeanScore]:
    """Average each score over all answers.

    For ROUGE, add the score `rouge`, the geometric mean of the three means. Standard errors assume independent answers; that
    of the geometric mean is a first-order estimate.

    Args:
        scores: Each answer's scores by name.

    Returns:
        Name -> mean score.
    """
    results: dict[str, MeanScore] = {}
    for name in scores[0]:
        results[name] = _mean([each[name] for each in scores])
    if set(results) == set(ROUGE):
        means = {name: results[name].mean for name in ROUGE}
        results[GEOMETRIC_MEAN] = _geometric_mean(means, scores)
    return results


def _geometric_mean(means: dict[str, float], scores: list[dict[str, float]]) -> MeanScore:
    mean = prod(means.values()) ** (1 / len(means))
    if not mean:
        return MeanScore(mean, None)
    # Derivative of the geometric mean by each mean.
    slopes = {name: mean / (len(means) * each) for name, each in means.items()}
    linearized = []
    for each in scores:
        linearized.append(sum(slope * each[name] for name, slope in slopes.items()))
    return MeanScore(mean, _mean(linearized).error)


@lru_cache
def rouge_scorer() -> Any:
    """Return rouge_score's scorer, with the options used by SCROLLS."""
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(ROUGE, use_stemmer=False)


def _f1(prediction: list[str], reference: list[str]) -> float:
    shared = Counter(prediction) & Counter(reference)
    num_shared = shared.total()
    if not num_shared:
        return 0.0
    return 2 * num_shared / (len(prediction) + len(reference))


def _mean(values: list[float]) -> MeanScore:
    if len(values) == 1:
        return MeanScore(values[0], None)
    return MeanScore(fmean(values), stdev(values) / sqrt(len(values)))
