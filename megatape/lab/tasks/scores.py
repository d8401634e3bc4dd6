"""Scores of answers in text by the definitions of SCROLLS (arXiv 2201.03533), in points from 0 to 100.

An answer has one or more references, of which the best counts. F1 and exact match compare normalized words, as SQuAD does.
"""

import re
import string
from collections import Counter
from functools import lru_cache
from math import prod, sqrt
from statistics import fmean, stdev
from typing import Any, Literal

Metric = Literal["f1", "exact_match", "rouge"]
METRICS: dict[Metric, str] = {"f1": "F1", "exact_match": "EM", "rouge": "ROUGE"}  # with their names in tables
ROUGE = ("rouge1", "rouge2", "rougeL")
GEOMETRIC_MEAN = "rouge"  # of the means of ROUGE

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize(text: str) -> list[str]:
    """Words in lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def score(metric: Metric, prediction: str, references: list[str]) -> dict[str, float]:
    """Scores of an answer by name: `f1` or `exact_match`, or `rouge1`, `rouge2` and `rougeL`, each with its own best reference.

    Raises:
        ModuleNotFoundError: The metric is `rouge`, and the package rouge_score is not installed.
    """
    if metric == "rouge":
        by_reference = [rouge_scorer().score(reference, prediction) for reference in references]
        return {name: 100.0 * max(scores[name].fmeasure for scores in by_reference) for name in ROUGE}
    words = normalize(prediction)
    if metric == "f1":
        return {metric: 100 * max(_f1(words, normalize(reference)) for reference in references)}
    return {metric: 100.0 * any(words == normalize(reference) for reference in references)}


def mean_scores(scores: list[dict[str, float]]) -> dict[str, tuple[float, float | None]]:
    """Mean of each score over all answers and its standard error; of ROUGE also `rouge`, the geometric mean of the three means.

    The error is that of independent answers, for the geometric mean to first order; None where it is not defined.
    """
    results = {name: _mean([each[name] for each in scores]) for name in scores[0]}
    if set(results) == set(ROUGE):
        means = [results[name][0] for name in ROUGE]
        geometric = prod(means) ** (1 / 3)
        slopes = {name: geometric / (3 * results[name][0]) for name in ROUGE} if geometric else {}
        _, error = _mean([sum(slope * each[name] for name, slope in slopes.items()) for each in scores])
        results[GEOMETRIC_MEAN] = geometric, error if geometric else None
    return results


@lru_cache
def rouge_scorer() -> Any:
    """The scorer of the package rouge_score, as SCROLLS calls it."""
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(ROUGE, use_stemmer=False)


def _f1(prediction: list[str], reference: list[str]) -> float:
    shared = sum((Counter(prediction) & Counter(reference)).values())
    return 2 * shared / (len(prediction) + len(reference)) if shared else 0.0


def _mean(values: list[float]) -> tuple[float, float | None]:
    return fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else None
