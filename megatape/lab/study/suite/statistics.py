"""The statistics of a suite: paired tests, correction, intervals, seeds needed, ranks (docs/suite_statistics.md).

Arrays of scores are [..., seeds], shares between 0 and 1 with the same seeds in the same order.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from math import comb

import numpy as np
from scipy import stats

LEVEL = 0.05
POWER = 0.8
MAX_SEEDS = 1000  # more are not counted
EXACT_DIVISIONS = 200_000  # all divisions of the runs of up to ten seeds are counted, of more as many random ones


def spread_of_differences(
    scores: np.ndarray, reference: np.ndarray, asked: np.ndarray | int, reference_asked: np.ndarray | int
) -> np.ndarray:
    """The standard deviation over seeds (n - 1) of the paired differences, [...].

    It is no less than what asking other questions would cause. Without this lower limit, five seeds that happen to agree would
    have no spread, and any difference would be certain. A share p of m answers has the variance p (1 - p) / m, and p is
    estimated by Laplace's rule (right + 1) / (m + 2), which is neither 0 nor 1.

    asked, reference_asked: how many answers each score is a share of.
    """
    observed = (scores - reference).var(axis=-1, ddof=1)
    return np.sqrt(np.maximum(observed, _question_variance(scores, asked) + _question_variance(reference, reference_asked)))


def _question_variance(scores: np.ndarray, asked: np.ndarray | int) -> np.ndarray:
    """[...]: the mean over seeds of the binomial variances of shares of `asked` answers."""
    share = (scores * asked + 1) / (asked + 2)
    return (share * (1 - share) / asked).mean(axis=-1)


def paired_p(mean: np.ndarray, spread: np.ndarray, seeds: int) -> np.ndarray:
    """[...]: two-sided p-values of the paired t-test (Student 1908), given mean and spread of differences of at least 2 seeds.

    Assumes that a difference varies over seeds like a normal variable around its mean.
    """
    return 2 * stats.t.sf(np.abs(mean) / (spread / np.sqrt(seeds)), seeds - 1)


def exact_p(scores: np.ndarray, reference: np.ndarray) -> float:
    """Two-sided p-value of the permutation test (Fisher 1935, Pitman 1937) of a difference of means, of [seeds] each.

    If both encodings are equally good, every division of their 2n runs into two groups of n is equally likely, whatever the
    distribution of scores: that some seeds learn a task and others do not changes nothing. It takes runs of the same seed for
    independent; if a seed helps or hinders both, p is too large.
    """
    data = (scores, reference)
    found = stats.permutation_test(data, _mean_difference, vectorized=True, n_resamples=EXACT_DIVISIONS, rng=0)
    return float(found.pvalue)


def _mean_difference(scores: np.ndarray, reference: np.ndarray, axis: int) -> np.ndarray:
    return scores.mean(axis) - reference.mean(axis)


def seeds_to_separate(level: float) -> int | None:
    """The least number of seeds n with which `exact_p` is below a level if all runs of one encoding beat all of the other.

    That is the most extreme of the (2n over n) divisions, and the opposite counts as well. None if random divisions are too few
    to show it.
    """
    if level <= 2 / (EXACT_DIVISIONS + 1):
        return None
    return next(seeds for seeds in range(2, MAX_SEEDS) if 2 / comb(2 * seeds, seeds) < level)


def holm(p: np.ndarray) -> np.ndarray:
    """[comparisons]: p-values corrected for their number (Holm 1979).

    The chance of one or more false findings among all of them stays below the level, however they depend on each other.
    """
    order = np.argsort(p)
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(steps, 1)
    return corrected


def t_interval(mean: float, spread: float, seeds: int, level: float) -> tuple[float, float]:
    """The interval for a difference of shares that has those values which the paired t-test does not reject at a level."""
    half = stats.t.isf(level / 2, seeds - 1) * spread / np.sqrt(seeds)
    return float(max(-1, mean - half)), float(min(1, mean + half))


def seeds_needed(mean: float, spread: float, level: float) -> int | None:
    """The least number of seeds with which the paired t-test finds a difference of this size with probability POWER.

    None if that is more than MAX_SEEDS. With n seeds, t follows the noncentral t-distribution with n - 1 degrees of freedom and
    noncentrality |mean| / spread sqrt(n) (Cohen 1988, chapter 2). A finding of the opposite sign does not count.
    """

    def found(seeds: int) -> bool:
        critical = stats.t.isf(level / 2, seeds - 1)
        return bool(stats.nct.sf(critical, seeds - 1, abs(mean) / spread * np.sqrt(seeds)) >= POWER)

    numbers = range(2, MAX_SEEDS + 1)
    first = bisect_left(numbers, True, key=found)
    return numbers[first] if first < len(numbers) else None


def rank(tasks: Sequence[np.ndarray]) -> tuple[np.ndarray, float, float]:
    """Rank methods by their scores. tasks: at least one of [splits, methods], at least 2 methods, larger is better.

    Methods are ranked on each split, ties share the mean of their ranks, and a task's rank is the mean over its splits. The
    Friedman test and the Nemenyi critical difference are Demšar's (2006, section 3.2) with tasks as blocks: splits of a task
    share their models and are not independent. A mean over splits, or a tie, varies less than a rank, so that both err on the
    side of no finding.

    Returns:
        Mean rank of each method [methods], of which 1 is the best; the p-value of the Friedman test, whether all methods could
        be alike; the difference of two mean ranks from which the two methods differ significantly.
    """
    ranks = np.array([stats.rankdata(-scores, axis=1).mean(axis=0) for scores in tasks])
    blocks, methods = ranks.shape
    means = ranks.mean(axis=0)
    chi_squared = 12 * blocks / (methods * (methods + 1)) * ((means - (methods + 1) / 2) ** 2).sum()
    critical = _nemenyi_quantile(methods) * np.sqrt(methods * (methods + 1) / (6 * blocks))
    return means, float(stats.chi2.sf(chi_squared, methods - 1)), float(critical)


@cache
def _nemenyi_quantile(methods: int) -> float:
    return float(stats.studentized_range.ppf(1 - LEVEL, methods, np.inf) / np.sqrt(2))
