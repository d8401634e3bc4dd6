"""Scores of answers in text by the definitions of SCROLLS (arXiv 2201.03533), in points from 0 to 100.

An answer has one or more references, and the best score counts. F1 and exact match compare normalized words, as SQuAD does.
"""

import re
import string
from collections import Counter
from functools import lru_cache
from math import prod, sqrt
from statistics import fmean, stdev
from typing import Any, Literal

Metric = Literal["f1", "exact_match", "rouge"]
# Metrics -> their names in tables.
METRICS: dict[Metric, str] = {"f1": "F1", "exact_match": "EM", "rouge": "ROUGE"}
ROUGE = ("rouge1", "rouge2", "rougeL")
# Name of the geometric mean of the means of ROUGE.
GEOMETRIC_MEAN = "rouge"

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize(text: str) -> list[str]:
    """Split a text into words in lower case, without punctuation and articles."""
    plain = text.lower().translate(_PUNCTUATION)
    return _ARTICLES.sub(" ", plain).split()


def score(metric: Metric, prediction: str, references: list[str]) -> dict[str, float]:
    """Score an answer.

    Args:
        metric: Metric of the set.
        prediction: The answer.
        references: References. Each score takes the best of them.

    Returns:
        Scores by name: `f1` or `exact_match`, or `rouge1`, `rouge2` and `rougeL`.

    Raises:
        ModuleNotFoundError: The metric is `rouge`, and the package rouge_score is not installed.
    """
    if metric == "rouge":
        by_reference = [rouge_scorer().score(reference, prediction) for reference in references]
        scores = {}
        for name in ROUGE:
            scores[name] = 100.0 * max(found[name].fmeasure for found in by_reference)
        return scores

    words = normalize(prediction)
    reference_words = [normalize(reference) for reference in references]
    if metric == "f1":
        return {metric: 100 * max(_f1(words, each) for each in reference_words)}
    is_exact = words in reference_words
    return {metric: 100.0 * is_exact}


def mean_scores(scores: list[dict[str, float]]) -> dict[str, tuple[float, float | None]]:
    """Average each score over all answers.

    ROUGE also gets the score `rouge`, the geometric mean of its three means. Standard errors assume independent answers; that
    of the geometric mean is to first order.

    Args:
        scores: Scores of each answer, by name.

    Returns:
        Mean and standard error of each score, by name. The error is None if it is undefined.
    """
    results = {}
    for name in scores[0]:
        results[name] = _mean([each[name] for each in scores])
    if set(results) == set(ROUGE):
        means = {name: results[name][0] for name in ROUGE}
        results[GEOMETRIC_MEAN] = _geometric_mean(means, scores)
    return results


def _geometric_mean(means: dict[str, float], scores: list[dict[str, float]]) -> tuple[float, float | None]:
    """Return the geometric mean of the means of ROUGE, and its standard error.

    Args:
        means: Mean of each score, by name.
        scores: Scores of each answer, by name.
    """
    mean = prod(means.values()) ** (1 / len(means))
    if not mean:
        return mean, None
    # The derivative of the geometric mean by each mean.
    slopes = {name: mean / (len(means) * each) for name, each in means.items()}
    linear = []
    for each in scores:
        linear.append(sum(slope * each[name] for name, slope in slopes.items()))
    _, error = _mean(linear)
    return mean, error


@lru_cache
def rouge_scorer() -> Any:
    """Return the scorer of the package rouge_score, with the options of SCROLLS."""
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(ROUGE, use_stemmer=False)


def _f1(prediction: list[str], reference: list[str]) -> float:
    shared = Counter(prediction) & Counter(reference)
    num_shared = shared.total()
    if not num_shared:
        return 0.0
    return 2 * num_shared / (len(prediction) + len(reference))


def _mean(values: list[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error, None for a single value."""
    if len(values) == 1:
        return values[0], None
    return fmean(values), stdev(values) / sqrt(len(values))
