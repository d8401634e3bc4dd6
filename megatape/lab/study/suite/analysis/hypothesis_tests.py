"""The statistics of a suite: tests, corrections, intervals, seeds needed, ranks (docs/suite_explained.md).

Arrays of scores are [..., seeds]: shares from 0 to 1, with equal seeds in the same order.
"""

from bisect import bisect_left
from functools import cache
from itertools import combinations
from math import ceil, comb
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
# Decimal digits of scores that are compared, because equal sums of other scores differ by rounding.
TIE_DIGITS = 12


class Comparison(NamedTuple):
    """Difference between the mean scores of two encodings, with its uncertainty. Each array is [...].

    Attributes:
        mean: Difference of the means.
        variance: Sum of the variances of a score of each encoding, over seeds.
        seeds: Number of seeds of each encoding, at least 2.
        degrees: Degrees of freedom (Welch 1947).
    """

    mean: np.ndarray
    variance: np.ndarray
    seeds: int
    degrees: np.ndarray

    @property
    def standard_error(self) -> np.ndarray:
        """Standard error of the difference."""
        return np.sqrt(self.variance / self.seeds)


def welch_comparison(
    scores: np.ndarray,
    reference: np.ndarray,
    question_variance: np.ndarray | float,
    reference_question_variance: np.ndarray | float,
) -> Comparison:
    """Compare the means of two encodings, whose variances over seeds may differ (Welch 1947).

    A variance is never below the one that drawing other questions would cause. Without this limit, five seeds agreeing by
    chance would have no spread, and any difference would be certain.

    Args:
        scores: An encoding's scores.
        reference: The reference's scores, for as many seeds.
        question_variance: Variance of a score over other questions, see `estimate_question_variance`.
        reference_question_variance: The same of a reference score.

    Returns:
        Difference of the means, with its uncertainty.
    """
    seeds = scores.shape[-1]
    variance = np.maximum(scores.var(axis=-1, ddof=1), question_variance)
    reference_variance = np.maximum(reference.var(axis=-1, ddof=1), reference_question_variance)
    total = variance + reference_variance
    degrees = (seeds - 1) * total**2 / (variance**2 + reference_variance**2)
    return Comparison(scores.mean(axis=-1) - reference.mean(axis=-1), total, seeds, degrees)


def estimate_question_variance(scores: np.ndarray, asked: np.ndarray | int) -> np.ndarray:
    """Return the mean over seeds of the binomial variances of shares of `asked` answers, [...].

    A share p of m answers has the variance p (1 - p) / m. Laplace's rule estimates p as (right + 1) / (m + 2), which is neither
    0 nor 1.
    """
    share = (scores * asked + 1) / (asked + 2)
    return (share * (1 - share) / asked).mean(axis=-1)


def welch_p(comparison: Comparison) -> np.ndarray:
    """Return the two-sided p-values of Welch's t-test, [...].

    The test assumes scores that vary over seeds like a normal variable.
    """
    t = np.abs(comparison.mean) / comparison.standard_error
    return 2 * stats.t.sf(t, comparison.degrees)


def exact_p(scores: np.ndarray, reference: np.ndarray) -> float:
    """Return the two-sided p-value of a difference in means by the permutation test (Fisher 1935, Pitman 1937).

    If both encodings are equally good, every division of their 2n runs into two groups of n is equally likely. This holds for
    any distribution of scores, even one with two peaks because some seeds learn a task and others do not. The test treats runs
    with the same seed as independent. If a seed helps or hinders both encodings, p is too large.

    Args:
        scores: An encoding's scores, [seeds].
        reference: The reference's scores, [seeds].
    """
    exchanges = _exchanges(scores, reference)
    num_above = exchanges.num_unchanged + int((exchanges.differences <= 0).sum())
    num_below = exchanges.num_unchanged + int((exchanges.differences >= 0).sum())
    return min(1.0, 2 * min(num_above, num_below) / exchanges.num_divisions)


def exact_interval(scores: np.ndarray, reference: np.ndarray, level: float) -> tuple[float, float] | None:
    """Return the interval of differences that the permutation test does not reject at a level, within -1 to 1 (Tritchler 1984).

    The test rejects a difference d if `exact_p` of the scores minus d is below the level. A division that exchanges runs of
    both encodings is at least as extreme as the actual one exactly if d is at least the difference in mean of the exchanged
    runs. So the limits of the interval are two of these differences.

    Args:
        scores: An encoding's scores, [seeds].
        reference: The reference's scores, [seeds].
        level: Level of the test.

    Returns:
        The interval, or None if there are too few seeds to reject any difference.
    """
    exchanges = _exchanges(scores, reference)
    # The smallest number of divisions with which one side is not rejected, beside the divisions that exchange nothing.
    num_needed = ceil(level / 2 * exchanges.num_divisions) - exchanges.num_unchanged
    if num_needed < 1:
        return None
    differences = np.sort(exchanges.differences)
    low = float(differences[num_needed - 1])
    high = float(differences[-num_needed])
    return max(-1.0, low), min(1.0, high)


class _Exchanges(NamedTuple):
    """Divisions of the runs of two encodings into two groups of equal size.

    Attributes:
        differences: Difference in mean of the runs that a division exchanges, [divisions that exchange some].
        num_unchanged: Number of divisions that exchange no run, among them the actual one.
    """

    differences: np.ndarray
    num_unchanged: int

    @property
    def num_divisions(self) -> int:
        return self.num_unchanged + len(self.differences)


def _exchanges(scores: np.ndarray, reference: np.ndarray) -> _Exchanges:
    """Return all divisions of the runs, or EXACT_DIVISIONS random ones if there are more."""
    seeds = len(scores)
    scores = scores.astype(float)
    reference = reference.astype(float)
    if comb(2 * seeds, seeds) > EXACT_DIVISIONS:
        return _random_exchanges(scores, reference)
    differences = []
    for count in range(1, seeds + 1):
        chosen = np.array(list(combinations(range(seeds), count)))
        means = scores[chosen].mean(axis=1)
        reference_means = reference[chosen].mean(axis=1)
        differences.append(np.subtract.outer(means, reference_means).ravel())
    return _Exchanges(np.concatenate(differences).round(TIE_DIGITS), 1)


def _random_exchanges(scores: np.ndarray, reference: np.ndarray) -> _Exchanges:
    """Return EXACT_DIVISIONS random divisions of the runs, and the actual one."""
    seeds = len(scores)
    runs = np.tile(np.arange(2 * seeds), (EXACT_DIVISIONS, 1))
    group = np.random.default_rng(0).permuted(runs, axis=1)[:, :seeds]
    is_in_group = np.zeros((EXACT_DIVISIONS, 2 * seeds), np.bool_)
    np.put_along_axis(is_in_group, group, True, axis=1)
    leaves = ~is_in_group[:, :seeds]
    joins = is_in_group[:, seeds:]
    num_exchanged = joins.sum(axis=1)
    sums = leaves @ scores - joins @ reference
    has_exchanged = num_exchanged > 0
    differences = sums[has_exchanged] / num_exchanged[has_exchanged]
    return _Exchanges(differences.round(TIE_DIGITS), 1 + int((~has_exchanged).sum()))


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


def interval_of(comparison: Comparison, level: float) -> tuple[float, float]:
    """Return the interval of differences that Welch's t-test does not reject at a level, within -1 to 1."""
    half = stats.t.isf(level / 2, comparison.degrees) * comparison.standard_error
    return float(max(-1, comparison.mean - half)), float(min(1, comparison.mean + half))


def seeds_needed(comparison: Comparison, level: float) -> int | None:
    """Return the number of seeds needed by Welch's t-test to find a difference of this size with probability POWER.

    With n seeds and equal variances, t follows the noncentral t-distribution with 2 (n - 1) degrees of freedom and
    noncentrality |mean| / standard error (Cohen 1988, chapter 2). A finding of the opposite sign does not count.

    Returns:
        The smallest number, or None if it is above MAX_SEEDS.
    """

    def suffices(seeds: int) -> bool:
        degrees = 2 * (seeds - 1)
        critical = stats.t.isf(level / 2, degrees)
        noncentrality = abs(comparison.mean) / np.sqrt(comparison.variance / seeds)
        return bool(stats.nct.sf(critical, degrees, noncentrality) >= POWER)

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
