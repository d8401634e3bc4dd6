"""The statistics of a suite: paired tests, correction, intervals, seeds needed, ranks (docs/suite_explained.md).

Arrays of scores are [..., seeds]: shares from 0 to 1, with equal seeds in the same order.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from math import comb
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.05
POWER = 0.8
# Largest reported number of needed seeds.
MAX_SEEDS = 1000
# Maximum number of divisions in the permutation test, which makes it exact for up to ten seeds. With more seeds, the test draws
# this many random divisions.
EXACT_DIVISIONS = 200_000


def spread_of_differences(
    scores: np.ndarray,
    reference: np.ndarray,
    asked: np.ndarray | int,
    reference_asked: np.ndarray | int,
) -> np.ndarray:
    """Return the standard deviation of the paired differences over seeds (n - 1), [...].

    It is never below the deviation that drawing other questions would cause. Without this limit, five seeds agreeing by chance
    would have no spread, and any difference would be certain. A share p of m answers has the variance p (1 - p) / m. Laplace's
    rule estimates p as (right + 1) / (m + 2), which is neither 0 nor 1.

    Args:
        scores: An encoding's scores.
        reference: The reference's scores.
        asked: Number of answers behind each score.
        reference_asked: Number of answers behind each reference score.
    """
    observed = (scores - reference).var(axis=-1, ddof=1)
    of_questions = _question_variance(scores, asked) + _question_variance(reference, reference_asked)
    return np.sqrt(np.maximum(observed, of_questions))


def _question_variance(scores: np.ndarray, asked: np.ndarray | int) -> np.ndarray:
    """Return the mean over seeds of the binomial variances of shares of `asked` answers, [...]."""
    share = (scores * asked + 1) / (asked + 2)
    return (share * (1 - share) / asked).mean(axis=-1)


def paired_p(mean: np.ndarray, spread: np.ndarray, seeds: int) -> np.ndarray:
    """Return two-sided p-values of the paired t-test (Student 1908), [...].

    The test assumes differences that vary over seeds like a normal variable around its mean.

    Args:
        mean: Mean differences.
        spread: Their standard deviations.
        seeds: Number of seeds, at least 2.
    """
    t = np.abs(mean) / (spread / np.sqrt(seeds))
    return 2 * stats.t.sf(t, seeds - 1)


def exact_p(scores: np.ndarray, reference: np.ndarray) -> float:
    """Return the two-sided p-value of a difference in means by the permutation test (Fisher 1935, Pitman 1937).

    If both encodings are equally good, every division of their 2n runs into two groups of n is equally likely. This holds for
    any distribution of scores, even one with two peaks because some seeds learn a task and others do not. The test treats runs
    with the same seed as independent. If a seed helps or hinders both encodings, p is too large.

    Args:
        scores: An encoding's scores, [seeds].
        reference: The reference's scores, [seeds].
    """
    data = (scores, reference)
    result = stats.permutation_test(data, _mean_difference, vectorized=True, n_resamples=EXACT_DIVISIONS, rng=0)
    return float(result.pvalue)


def _mean_difference(scores: np.ndarray, reference: np.ndarray, axis: int) -> np.ndarray:
    return scores.mean(axis) - reference.mean(axis)


def seeds_to_separate(level: float) -> int | None:
    """Return the number of seeds needed for `exact_p` below a level if all runs of one encoding beat all of the other.

    With n seeds, that is the most extreme of (2n over n) divisions, and the opposite one counts as well.

    Returns:
        The smallest number, or None if the test draws too few random divisions to show it.
    """
    if level <= 2 / (EXACT_DIVISIONS + 1):
        return None
    return next(seeds for seeds in range(2, MAX_SEEDS) if 2 / comb(2 * seeds, seeds) < level)


def holm(p: np.ndarray) -> np.ndarray:
    """Return p-values corrected for their number (Holm 1979), [comparisons].

    The chance of one or more false findings among them stays below the level, even if they depend on each other.
    """
    order = np.argsort(p)
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(steps, 1)
    return corrected


def t_interval(mean: float, spread: float, seeds: int, level: float) -> tuple[float, float]:
    """Return the interval of mean differences that the paired t-test does not reject at a level, within -1 to 1."""
    half = stats.t.isf(level / 2, seeds - 1) * spread / np.sqrt(seeds)
    return float(max(-1, mean - half)), float(min(1, mean + half))


def seeds_needed(mean: float, spread: float, level: float) -> int | None:
    """Return the number of seeds needed by the paired t-test to find a difference of this size with probability POWER.

    With n seeds, t follows the noncentral t-distribution with n - 1 degrees of freedom and noncentrality
    |mean| / spread sqrt(n) (Cohen 1988, chapter 2). A finding of the opposite sign does not count.

    Returns:
        The smallest number, or None if it is above MAX_SEEDS.
    """

    def suffices(seeds: int) -> bool:
        critical = stats.t.isf(level / 2, seeds - 1)
        noncentrality = abs(mean) / spread * np.sqrt(seeds)
        return bool(stats.nct.sf(critical, seeds - 1, noncentrality) >= POWER)

    numbers = range(2, MAX_SEEDS + 1)
    first = bisect_left(numbers, True, key=suffices)
    if first == len(numbers):
        return None
    return numbers[first]


class Ranking(NamedTuple):
    """Mean ranks of methods, with their tests.

    Attributes:
        means: Mean rank of each method [methods], 1 for the best.
        p: p-value of the Friedman test, whose null hypothesis is that all methods are equally good.
        critical: Critical difference of two mean ranks.
    """

    means: np.ndarray
    p: float
    critical: float


def rank(tasks: Sequence[np.ndarray]) -> Ranking:
    """Rank methods by their scores.

    Methods are ranked on each split, with ties sharing the mean of their ranks, and a task's rank is the mean over its splits.
    The Friedman test and the Nemenyi critical difference follow Demšar (2006, section 3.2), with tasks as blocks because the
    splits of a task share their models and are not independent. Means over splits, and ties, vary less than ranks, so both
    tests err on the side of no finding.

    Args:
        tasks: Scores of each task, [splits, methods]. Larger is better. At least one task and two methods.
    """
    ranks = np.array([stats.rankdata(-scores, axis=1).mean(axis=0) for scores in tasks])
    blocks, methods = ranks.shape
    means = ranks.mean(axis=0)
    chi_squared = 12 * blocks / (methods * (methods + 1)) * ((means - (methods + 1) / 2) ** 2).sum()
    critical = _nemenyi_quantile(methods) * np.sqrt(methods * (methods + 1) / (6 * blocks))
    return Ranking(means, float(stats.chi2.sf(chi_squared, methods - 1)), float(critical))


@cache
def _nemenyi_quantile(methods: int) -> float:
    return float(stats.studentized_range.ppf(1 - LEVEL, methods, np.inf) / np.sqrt(2))
