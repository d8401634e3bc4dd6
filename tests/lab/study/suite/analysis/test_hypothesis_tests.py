"""Statistics compared with independent computations, published examples and simulations with known rates."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from megatape.lab.study.suite.analysis.hypothesis_tests import (
    LEVEL,
    Comparison,
    benjamini_hochberg,
    estimate_question_variance,
    exact_interval,
    exact_p,
    holm,
    interval_of,
    rank,
    seeds_needed,
    seeds_to_separate,
    welch_comparison,
    welch_p,
)
from tests.helpers.checks.slow import slow_but

# Enough answers to exclude the choice of questions from the spread
MANY = 10**9


def p_of(scores: np.ndarray, reference: np.ndarray, asked: int = MANY) -> np.ndarray:
    """Return the p-values of Welch's t-test.

    Args:
        scores: Scores by seed, [..., seeds].
        reference: Scores of the reference, [..., seeds].
        asked: Number of answers behind each score.
    """
    question_variance = estimate_question_variance(scores, asked)
    reference_question_variance = estimate_question_variance(reference, asked)
    return welch_p(welch_comparison(scores, reference, question_variance, reference_question_variance))


def comparison_of(mean: float, variance: float) -> Comparison:
    """Return a comparison of two encodings with this variance each."""
    return Comparison(np.array(mean), np.array(2 * variance), 5, np.array(8))


def most(rate: float, trials: int) -> float:
    """Return the share of trials that a rate exceeds with a probability of 3e-5: four standard deviations."""
    return rate + 4 * np.sqrt(rate * (1 - rate) / trials)


def test_welch_p_equals_scipys() -> None:
    scores, reference = np.random.default_rng(0).uniform(size=(2, 20, 5)) ** np.array([1, 4]).reshape(2, 1, 1)

    expected = stats.ttest_ind(scores, reference, axis=-1, equal_var=False).pvalue

    assert p_of(scores, reference) == pytest.approx(expected, rel=1e-6)


def test_identical_scores_of_all_seeds() -> None:
    """Without spread, no difference has p = 1, one answer of 1000 is not significant, and half of them are."""
    perfect = np.ones(5)

    assert p_of(perfect, perfect, 1000) == 1
    assert p_of(perfect, perfect - 1 / 1000, 1000) > 0.1
    assert p_of(perfect, perfect / 2, 1000) < 1e-5
    assert p_of(perfect, perfect * 0, 1000) < 1e-5


def test_false_findings_of_one_comparison() -> None:
    """Equal encodings differ significantly at about the level's rate, at levels that five seeds must reach in large tables.

    With few seeds, Welch's degrees of freedom make the test slightly strict."""
    trials = 100_000
    generator = np.random.default_rng(0)
    scores, reference = generator.normal(0.5, 0.05, (2, trials, 5))

    p = p_of(scores, reference)

    for level in (0.05, 1e-3):
        rate = (p < level).mean()
        assert rate >= 0.5 * level
        assert rate <= most(level, trials)

    # With few answers, their chance is in the scores too, and the lower limit of the spread can only remove findings.
    asked = 100
    shares = np.clip(generator.normal(0.5, 0.05, (2, trials, 5)), 0, 1)
    scores, reference = generator.binomial(asked, shares) / asked
    assert (p_of(scores, reference, asked) < 0.05).mean() <= most(0.05, trials)


@pytest.mark.parametrize("seeds", [3, 5])
def test_exact_p_counts_all_divisions(seeds: int) -> None:
    """Each way to divide the runs into two groups is counted here."""
    scores, reference = np.random.default_rng(seeds).uniform(size=(2, seeds))
    runs = np.concatenate([scores, reference])
    sums = []
    for chosen in combinations(range(2 * seeds), seeds):
        sums.append(runs[list(chosen)].sum())
    share_above = (np.array(sums) >= scores.sum() - 1e-12).mean()
    share_below = (np.array(sums) <= scores.sum() + 1e-12).mean()

    expected = min(1, 2 * share_above, 2 * share_below)

    assert exact_p(scores, reference) == pytest.approx(expected)


@pytest.mark.parametrize("learned", range(6))
def test_exact_p_equals_fishers_test_of_seeds_that_learned(learned: int) -> None:
    """All five seeds of one encoding learned the task, and some seeds of the other."""
    table = [[5, 0], [learned, 5 - learned]]
    expected = min(1, 2 * stats.fisher_exact(table, alternative="greater").pvalue)

    assert exact_p(np.ones(5), np.arange(5) < learned) == pytest.approx(expected)


def test_exact_p_of_equal_scores() -> None:
    assert exact_p(np.ones(5), np.ones(5)) == 1


@pytest.mark.parametrize("shared", [0.0, 0.5], ids="{} of the seeds shared".format)
def test_false_findings_of_seeds_that_learn_or_not(shared: float) -> None:
    """With equal encodings, the rate of the exact test is at most the level, even if a seed helps both."""
    trials = 20_000
    generator = np.random.default_rng(0)
    p_by_counts = {}
    for count, other_count in product(range(5), repeat=2):
        p_by_counts[count, other_count] = exact_p(np.arange(4) < count, np.arange(4) < other_count)
    common = generator.uniform(size=(trials, 1, 4))
    own = generator.uniform(size=(trials, 2, 4))
    is_shared = generator.uniform(size=(trials, 1, 4)) < shared
    learned = np.where(is_shared, common, own) < 0.5

    p = np.array([p_by_counts[int(count), int(other_count)] for count, other_count in learned.sum(-1)])

    assert (p < LEVEL).mean() <= most(LEVEL, trials)
    assert (p < LEVEL).any(), "four seeds can show something"


def test_t_test_of_seeds_that_learn_or_not_finds_too_much() -> None:
    """If only some seeds learn a task, the t-test finds differences where none are. The exact test exists for this reason."""
    trials = 20_000
    scores, reference = (np.random.default_rng(0).uniform(size=(2, trials, 3)) < 0.5).astype(float)

    p = p_of(scores, reference, 100)

    assert (p < 1e-3).mean() > 0.005


def test_seeds_to_separate() -> None:
    """Three seeds show nothing: 2 of 20 divisions are as extreme."""
    comparisons = (1, 24, 168, 672, 2128)

    assert [seeds_to_separate(LEVEL / count) for count in comparisons] == [4, 7, 8, 9, 10]
    assert seeds_to_separate(LEVEL / 5001) is None, "random divisions show no less"


@pytest.mark.parametrize("comparisons", [1, 24, 2128])
def test_one_seed_less_does_not_separate(comparisons: int) -> None:
    def corrected_p(seeds: int) -> float:
        return exact_p(np.ones(seeds), np.zeros(seeds)) * comparisons

    seeds = seeds_to_separate(LEVEL / comparisons)

    assert seeds is not None
    assert corrected_p(seeds) < LEVEL
    assert corrected_p(seeds - 1) >= LEVEL


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        pytest.param([0.03, 0.01, 0.05, 0.02, 0.04], [0.09, 0.05, 0.09, 0.08, 0.09], id="by hand"),
        pytest.param([0.5, 0.5], [1, 1], id="ties"),
        pytest.param([], [], id="no values"),
    ],
)
def test_holm_by_hand(p: list[float], expected: list[float]) -> None:
    assert holm(np.array(p)).tolist() == pytest.approx(expected)


def test_holm_rejects_what_its_definition_rejects() -> None:
    p = np.random.default_rng(0).uniform(size=20) ** 6
    expected = set()
    for step, index in enumerate(np.argsort(p)):
        if p[index] >= LEVEL / (len(p) - step):
            break
        expected.add(index)
    assert 1 < len(expected) < 20

    assert set(np.flatnonzero(holm(p) < LEVEL)) == expected


def test_false_findings_of_a_table() -> None:
    """With 24 comparisons of equal encodings with a reference, at most 5% of tables have a finding."""
    trials = 3000
    generator = np.random.default_rng(0)
    reference = generator.normal(0.5, 0.05, (trials, 1, 5))
    scores = generator.normal(0.5, 0.05, (trials, 24, 5))

    p = p_of(scores, np.broadcast_to(reference, scores.shape))

    has_finding = [(holm(table) < LEVEL).any() for table in p]
    assert np.mean(has_finding) > 0.005
    assert np.mean(has_finding) <= most(LEVEL, trials)
    has_uncorrected_finding = (p < LEVEL).any(axis=1)
    assert has_uncorrected_finding.mean() > 0.3


# Intervals below have a confidence of one minus this level.
INTERVAL_LEVEL = 0.05


def test_t_interval_of_two_seeds_is_clipped() -> None:
    """Shares differ by at most 1."""
    comparison = welch_comparison(np.array([0.1, 0.9]), np.array([0.2, 0.3]), 0, 0)
    assert interval_of(comparison, INTERVAL_LEVEL) == (-1, 1)


@pytest.mark.parametrize("seeds", slow_but([3], [2, 3, 5, 10]))
def test_t_interval(seeds: int) -> None:
    """The interval equals scipy's, and covers the difference of normal scores at its confidence or above it."""
    trials = 20_000
    scores, reference = np.random.default_rng(seeds).normal(0, 0.01, (2, trials, seeds))

    intervals = []
    for pair in zip(scores, reference, strict=True):
        intervals.append(interval_of(welch_comparison(*pair, 0, 0), INTERVAL_LEVEL))

    confidence = 1 - INTERVAL_LEVEL
    expected = stats.ttest_ind(scores[0], reference[0], equal_var=False).confidence_interval(confidence)
    assert intervals[0] == pytest.approx((expected.low, expected.high))
    covered = np.mean([low <= 0 <= high for low, high in intervals])
    assert covered >= 2 * confidence - most(confidence, trials)


def shifted_p(shift: float, scores: np.ndarray, reference: np.ndarray) -> float:
    """Return scipy's p-value of a difference."""
    result = stats.permutation_test(
        (scores - shift, reference),
        lambda one, other, axis: one.mean(axis) - other.mean(axis),
        vectorized=True,
        n_resamples=20_000,
    )
    return float(result.pvalue)


@pytest.mark.parametrize("level", [0.05, 0.3])
@pytest.mark.parametrize("seeds", [4, 5, 7])
def test_permutation_interval_has_the_differences_that_scipy_does_not_reject(seeds: int, level: float) -> None:
    scores, reference = np.random.default_rng(seeds).uniform(size=(2, seeds)) * 0.2

    interval = exact_interval(scores, reference, level)

    assert interval is not None
    low, high = interval
    margin = 1e-9
    assert shifted_p(low - margin, scores, reference) < level
    assert shifted_p(low + margin, scores, reference) >= level
    assert shifted_p(high - margin, scores, reference) >= level
    assert shifted_p(high + margin, scores, reference) < level


def test_three_seeds_have_no_permutation_interval() -> None:
    """No division of three and three runs is rare enough to reject any difference."""
    assert exact_interval(np.ones(3), np.zeros(3), INTERVAL_LEVEL) is None
    assert exact_interval(np.ones(4), np.zeros(4), INTERVAL_LEVEL) == (1, 1)


def test_permutation_interval_of_many_seeds() -> None:
    """With random divisions of normal scores, the limits are near those of the t-test."""
    scores, reference = np.random.default_rng(0).normal(0.5, 0.1, (2, 40))

    interval = exact_interval(scores, reference, INTERVAL_LEVEL)

    expected = stats.ttest_ind(scores, reference).confidence_interval(1 - INTERVAL_LEVEL)
    # Measured: the limits differ by up to 0.0003, the p-values by 0.0013.
    assert interval == pytest.approx((expected.low, expected.high), abs=0.002)
    assert exact_p(scores, reference) == pytest.approx(stats.ttest_ind(scores, reference).pvalue, abs=0.01)


def test_coverage_of_permutation_intervals() -> None:
    """Scores with two peaks, which the t-test does not cover at its confidence, are covered."""
    trials = 2000
    learned = np.random.default_rng(0).uniform(size=(2, trials, 5)) < 0.3
    scores, reference = np.where(learned, 0.9, 0.1) + np.random.default_rng(1).normal(0, 0.01, learned.shape)

    covered = []
    for pair in zip(scores, reference, strict=True):
        interval = exact_interval(*pair, INTERVAL_LEVEL)
        assert interval is not None
        covered.append(interval[0] <= 0 <= interval[1])

    confidence = 1 - INTERVAL_LEVEL
    assert np.mean(covered) >= 2 * confidence - most(confidence, trials)


@pytest.mark.parametrize(("size", "expected"), [(0.2, 394), (0.5, 64), (-0.8, 26)])
def test_seeds_needed_as_in_gpower(size: float, expected: int) -> None:
    """Sizes of each of two samples as G*Power 3 gives them for level 5% and power 80%."""
    assert seeds_needed(comparison_of(size, 1), 0.05) == expected


@pytest.mark.parametrize("mean", [0, 1e-9, 0.05])
def test_no_number_of_seeds_shows_a_small_difference(mean: float) -> None:
    assert seeds_needed(comparison_of(mean, 1), 0.05) is None


def test_two_seeds_show_a_difference_without_spread() -> None:
    assert seeds_needed(comparison_of(1, 1e-12), 1e-4) == 2


def test_seeds_needed_reach_the_power_in_a_simulation() -> None:
    """At a level lower than G*Power's, one seed less has a power below 80%."""
    level = 0.05 / 600
    trials = 20_000
    tolerance = 0.012  # Four standard deviations of the share

    def power(seeds: int) -> float:
        generator = np.random.default_rng(0)
        scores = generator.normal(2, 1, (trials, seeds))
        reference = generator.normal(0, 1, (trials, seeds))
        p = stats.ttest_ind(scores, reference, axis=1).pvalue
        return float((p < level).mean())

    needed = seeds_needed(comparison_of(2, 1), level)

    assert needed is not None
    assert needed > 5
    assert power(needed) >= 0.8 - tolerance
    assert power(needed - 1) < 0.8 - tolerance


# Table 6 of Demšar 2006: four variants of C4.5 on 14 data sets. The two 0.975 of "voting" are ranked 2 and 3 there.
DEMSAR = """
0.763 0.768 0.771 0.798  0.599 0.591 0.590 0.569  0.954 0.971 0.968 0.967  0.628 0.661 0.654 0.657  0.882 0.888 0.886 0.898
0.936 0.931 0.916 0.931  0.661 0.668 0.609 0.685  0.583 0.583 0.563 0.625  0.775 0.838 0.866 0.875  1.000 1.000 1.000 1.000
0.940 0.962 0.965 0.962  0.619 0.666 0.614 0.669  0.972 0.981 0.9751 0.975  0.957 0.978 0.946 0.970
"""
# Table 5(a) there: quantiles by number of methods
QUANTILES = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164}


def test_published_ranks() -> None:
    scores = np.array([float(number) for number in DEMSAR.split()]).reshape(14, 4)

    ranking = rank(scores)

    assert ranking.means.tolist() == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    # scipy corrects the chi-squared approximation for ties, and with 14 tasks the approximation is fair.
    assert ranking.p == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue, rel=0.25)
    assert ranking.critical == pytest.approx(1.25, abs=5e-3)


def test_p_of_many_tasks_equals_friedmans_test() -> None:
    """The permutation test approaches the chi-squared approximation with the number of tasks."""
    scores = np.random.default_rng(0).uniform(size=(100, 4))

    ranking = rank(scores)

    assert ranking.p == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue, rel=0.05)


@pytest.mark.parametrize(("methods", "quantile"), QUANTILES.items())
def test_published_quantiles(methods: int, quantile: float) -> None:
    tasks = 6

    ranking = rank(np.array([np.arange(methods)] * tasks))

    expected = quantile * np.sqrt(methods * (methods + 1) / (6 * tasks))
    assert ranking.critical == pytest.approx(expected, rel=3e-4)


def test_ranks_of_two_methods() -> None:
    """If one of two methods is better on each of six tasks, 2 of the 2^6 equally likely orders are as extreme."""
    ranking = rank(np.array([[1.0, 0.0]] * 6))

    assert ranking.p == pytest.approx(2 / 2**6, rel=0.15)


def test_means_that_differ_by_rounding_are_ties() -> None:
    ranking = rank(np.array([[np.mean([0.1, 0.2, 0.3]), np.mean([0.3, 0.2, 0.1])]]))

    assert ranking.means.tolist() == [1.5, 1.5]


def test_ties_are_no_finding() -> None:
    ranking = rank(np.ones((5, 3)))

    assert ranking.means.tolist() == [2, 2, 2]
    assert ranking.p == 1


def test_false_findings_of_ranks() -> None:
    """With equal methods and few tasks, a level is reached about as often as it says: not more, and not much less."""
    trials = 1000
    generator = np.random.default_rng(0)
    rankings = [rank(generator.normal(size=(5, 6))) for _ in range(trials)]

    for level in (LEVEL, 0.2):
        significant = np.mean([ranking.p < level for ranking in rankings])
        assert significant <= most(level, trials)
        assert significant >= 2 * level - most(level, trials)
    separated = [np.ptp(ranking.means) >= ranking.critical for ranking in rankings]
    assert np.mean(separated) <= most(LEVEL, trials)


def test_adjustment_for_the_false_discovery_rate() -> None:
    p = np.random.default_rng(0).uniform(size=50)

    assert benjamini_hochberg(p) == pytest.approx(stats.false_discovery_control(p))


def test_share_of_false_discoveries() -> None:
    """With 80 equal and 20 different encodings, 4% of the findings are false on average: 5% of the share of equal ones."""
    trials = 500
    generator = np.random.default_rng(0)
    false_shares = []
    for _ in range(trials):
        equal = generator.uniform(size=80)
        different = 2 * stats.norm.sf(np.abs(generator.normal(3, 1, size=20)))
        is_found = benjamini_hochberg(np.concatenate([equal, different])) < LEVEL
        false_shares.append(is_found[:80].sum() / max(1, is_found.sum()))

    assert np.mean(false_shares) == pytest.approx(0.8 * LEVEL, abs=0.01)
