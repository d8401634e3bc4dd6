"""The statistics of a suite: paired tests, corrections, intervals, seeds needed, ranks (docs/suite_explained.md).

Arrays of scores are [..., seeds]: shares from 0 to 1, with equal seeds in the same order.
"""

from bisect import bisect_left
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
# Number of random permutations in the test of mean ranks.
RANK_PERMUTATIONS = 20_000
# Decimal digits of scores that are compared in ranking.
TIE_DIGITS = 12


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
    from_questions = question_variance(scores, asked) + question_variance(reference, reference_asked)
    return np.sqrt(np.maximum(observed, from_questions))


def question_variance(scores: np.ndarray, asked: np.ndarray | int) -> np.ndarray:
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


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """Return p-values adjusted for the false discovery rate (Benjamini and Hochberg 1995), [comparisons].

    Among the findings below a level, at most that share is expected to be false. This holds for comparisons that are
    independent or positively dependent.
    """
    order = np.argsort(p)[::-1]
    num_smaller_or_equal = np.arange(len(p), 0, -1)
    steps = np.minimum.accumulate(p[order] * len(p) / num_smaller_or_equal)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1)
    return adjusted


class Ranking(NamedTuple):
    """Mean ranks of methods, with their tests.

    Attributes:
        means: Mean rank of each method [methods], 1 for the best.
        p: p-value of the null hypothesis that all methods are equally good.
        critical: Critical difference of two mean ranks.
    """

    means: np.ndarray
    p: float
    critical: float


def rank(scores: np.ndarray) -> Ranking:
    """Rank methods by their scores on each task. Ties share the mean of their ranks.

    The statistic is Friedman's (1937), the spread of the mean ranks. Its distribution is found by permuting the ranks within
    each task, because the chi-squared approximation is rough for a few tasks. The Nemenyi critical difference follows Demšar
    (2006, section 3.2).

    Args:
        scores: Score by task and method, [tasks, methods]. Larger is better. At least one task and two methods.
    """
    # Equal means of other scores differ by rounding.
    ranks = stats.rankdata(-scores.round(TIE_DIGITS), axis=1)
    num_tasks, num_methods = ranks.shape
    means = ranks.mean(axis=0)
    critical = _nemenyi_quantile(num_methods) * np.sqrt(num_methods * (num_methods + 1) / (6 * num_tasks))
    return Ranking(means, _permuted_ranks_p(ranks), float(critical))


def _permuted_ranks_p(ranks: np.ndarray) -> float:
    """Return the p-value of the spread of mean ranks, by permuting the ranks [tasks, methods] within each task."""
    generator = np.random.default_rng(0)
    sums = np.zeros((RANK_PERMUTATIONS, ranks.shape[1]))
    for ranks_of_task in ranks:
        copies = np.tile(ranks_of_task, (RANK_PERMUTATIONS, 1))
        sums += generator.permuted(copies, axis=1)
    # Ranks are multiples of one half, so sums of squares are exact, and equal spreads compare as equal.
    spreads = np.square(sums).sum(axis=1)
    observed = np.square(ranks.sum(axis=0)).sum()
    return float((1 + (spreads >= observed).sum()) / (1 + RANK_PERMUTATIONS))


@cache
def _nemenyi_quantile(methods: int) -> float:
    return float(stats.studentized_range.ppf(1 - LEVEL, methods, np.inf) / np.sqrt(2))
