"""Statistics compared with independent computations, published examples and simulations with known rates."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from megatape.lab.study.suite.analysis.hypothesis_tests import (
    LEVEL,
    exact_p,
    holm,
    paired_p,
    rank,
    seeds_needed,
    seeds_to_separate,
    spread_of_differences,
    t_interval,
)
from tests.helpers.checks.slow import slow_but

MANY = 10**9  # answers: asking others would change nothing


def p_of(scores: np.ndarray, reference: np.ndarray, asked: int = MANY) -> np.ndarray:
    spread = spread_of_differences(scores, reference, asked, asked)
    return paired_p((scores - reference).mean(axis=-1), spread, scores.shape[-1])


def most(rate: float, trials: int) -> float:
    """A share of trials that a rate exceeds with a probability of 3e-5: four standard deviations."""
    return rate + 4 * np.sqrt(rate * (1 - rate) / trials)


def test_paired_t_test() -> None:
    scores = np.random.default_rng(0).uniform(size=(2, 20, 5))
    assert p_of(*scores) == pytest.approx(stats.ttest_rel(*scores, axis=-1).pvalue, rel=1e-6)


def test_identical_scores_of_all_seeds() -> None:
    """Without spread, no difference has p = 1, one answer of 1000 is not significant, and half of them are."""
    perfect = np.ones(5)
    assert p_of(perfect, perfect, 1000) == 1
    assert p_of(perfect, perfect - 1 / 1000, 1000) > 0.1
    assert p_of(perfect, perfect / 2, 1000) < 1e-5
    assert p_of(perfect, perfect * 0, 1000) < 1e-5


def test_false_findings_of_one_comparison() -> None:
    """With equal encodings, at levels that five seeds must reach in large tables. A seed moves both: they share their data."""
    trials = 100_000
    generator = np.random.default_rng(0)
    common = generator.normal(0.5, 0.05, (trials, 5))
    p = p_of(*(common + generator.normal(0, 0.02, (2, trials, 5))))
    for level in (0.05, 1e-3):
        assert 2 * level - most(level, trials) <= (p < level).mean() <= most(level, trials)
    # With few answers, their chance is in the scores too, and the lower limit of the spread can only remove findings.
    asked = 100
    few = generator.binomial(asked, np.clip(common, 0, 1), (2, trials, 5)) / asked
    assert (p_of(few[0], few[1], asked) < 0.05).mean() <= most(0.05, trials)


def test_exact_permutation() -> None:
    """Compared with all divisions counted one by one, and with Fisher's exact test of the numbers of seeds that learned."""
    generator = np.random.default_rng(0)
    for seeds in (3, 5):
        scores, reference = generator.uniform(size=(2, seeds))
        runs = np.concatenate([scores, reference])
        sums = np.array([runs[list(chosen)].sum() for chosen in combinations(range(2 * seeds), seeds)])
        tail = min((sums >= scores.sum() - 1e-12).mean(), (sums <= scores.sum() + 1e-12).mean())
        assert exact_p(scores, reference) == pytest.approx(min(1, 2 * tail))
    for learned in range(6):
        table = [[5, 0], [learned, 5 - learned]]
        expected = stats.fisher_exact(table, alternative="greater").pvalue
        found = exact_p(np.ones(5), np.arange(5) < learned)
        assert found == pytest.approx(min(1, 2 * expected))
    assert exact_p(np.ones(5), np.ones(5)) == 1


def test_false_findings_of_seeds_that_learn_or_not() -> None:
    """With equal encodings, the rate is at most the level, even if a seed helps both. That of the t-test is far above it."""
    trials = 20_000
    generator = np.random.default_rng(0)
    by_count = {(a, b): exact_p(np.arange(4) < a, np.arange(4) < b) for a in range(5) for b in range(5)}
    for shared in (0.0, 0.5):
        common = generator.uniform(size=(trials, 1, 4))
        own = generator.uniform(size=(trials, 2, 4))
        learned = np.where(generator.uniform(size=(trials, 1, 4)) < shared, common, own) < 0.5
        exact = np.array([by_count[int(a), int(b)] for a, b in learned.sum(-1)])
        assert (exact < LEVEL).mean() <= most(LEVEL, trials)
        assert (exact < LEVEL).any()  # four seeds can show something
    scores, reference = (generator.uniform(size=(2, trials, 3)) < 0.5).astype(float)
    t = p_of(scores, reference, 100)
    assert (t < 1e-3).mean() > 0.02


def test_seeds_to_separate() -> None:
    """Three seeds show nothing: 2 of 20 divisions are as extreme."""
    assert [seeds_to_separate(LEVEL / comparisons) for comparisons in (1, 24, 168, 672, 2128)] == [4, 7, 8, 9, 10]
    assert seeds_to_separate(LEVEL / 5001) is None, "random divisions show no less"
    for comparisons in (1, 24, 2128):
        seeds = seeds_to_separate(LEVEL / comparisons)
        assert seeds is not None
        apart = [exact_p(np.ones(number), np.zeros(number)) * comparisons < LEVEL for number in (seeds - 1, seeds)]
        assert apart == [False, True]


def test_holm() -> None:
    """Compared with values computed by hand, with ties, without values, and with the definition step by step."""
    assert holm(np.array([0.03, 0.01, 0.05, 0.02, 0.04])).tolist() == pytest.approx([0.09, 0.05, 0.09, 0.08, 0.09])
    assert holm(np.array([0.5, 0.5])).tolist() == [1, 1]
    assert holm(np.array([])).tolist() == []
    p = np.random.default_rng(0).uniform(size=20) ** 6
    found = set()
    rejected = holm(p) < LEVEL
    for step, index in enumerate(np.argsort(p)):
        if p[index] >= LEVEL / (len(p) - step):
            break
        found.add(index)
    assert 1 < len(found) < 20
    assert found == set(np.flatnonzero(rejected))


def test_false_findings_of_a_table() -> None:
    """With 24 comparisons of equal encodings with a reference, at most 5% of tables have a finding."""
    trials = 3000
    generator = np.random.default_rng(0)
    reference = generator.normal(0.5, 0.05, (trials, 1, 5))
    p = p_of(generator.normal(0.5, 0.05, (trials, 24, 5)), np.broadcast_to(reference, (trials, 24, 5)))
    rate = np.mean([(holm(table) < LEVEL).any() for table in p])
    assert 0.005 < rate <= most(LEVEL, trials)
    assert ((p < LEVEL).any(axis=1)).mean() > 0.3  # without the correction


@pytest.mark.parametrize("seeds", slow_but([3], [2, 3, 5, 10]))
def test_t_interval(seeds: int) -> None:
    """It is scipy's; and it covers the mean of normal differences at its confidence from two seeds on, where the range of the
    values, which no bootstrap interval leaves, covers 50% at two seeds, 75% at three and 94% at five."""
    trials = 20_000
    level = 0.05
    values = np.random.default_rng(seeds).normal(0, 0.01, (trials, seeds))
    means = values.mean(axis=1)
    spreads = values.std(axis=1, ddof=1)
    found = np.array([t_interval(mean, spread, seeds, level) for mean, spread in zip(means, spreads, strict=True)])
    expected = stats.t.interval(1 - level, seeds - 1, means[0], stats.sem(values[0]))
    assert found[0] == pytest.approx(np.clip(expected, -1, 1))
    covered = ((found[:, 0] <= 0) & (found[:, 1] >= 0)).mean()
    assert 2 * 0.95 - most(0.95, trials) <= covered <= most(0.95, trials)
    in_range = ((values.min(axis=1) <= 0) & (values.max(axis=1) >= 0)).mean()
    assert in_range == pytest.approx(1 - 2 ** (1 - seeds), abs=4 * np.sqrt(0.25 / trials))
    assert t_interval(0.9, 1, 2, level) == (-1, 1)  # shares differ by no more


def test_seeds_needed() -> None:
    """Sample sizes of the paired t-test as G*Power 3 gives them for level 5% and power 80%; a simulation at a lower level."""
    assert [seeds_needed(size, 1, 0.05) for size in (0.2, 0.5, -0.8)] == [199, 34, 15]
    assert [seeds_needed(mean, 1, 0.05) for mean in (0, 1e-9, 0.05)] == [None, None, None]
    assert seeds_needed(1, 1e-6, 1e-4) == 2
    level = 0.05 / 600
    trials = 20_000
    needed = seeds_needed(2, 1, level)
    assert needed is not None
    assert needed > 5
    for seeds, enough in {needed - 1: False, needed: True}.items():
        values = np.random.default_rng(0).normal(2, 1, (trials, seeds))
        found = (stats.ttest_1samp(values, 0, axis=1).pvalue < level).mean()
        assert (found >= 0.8 - 0.012) == enough, (seeds, found)  # 0.012: four standard deviations


# Table 6 of Demšar 2006: four variants of C4.5 on 14 data sets. The two 0.975 of "voting" are ranked 2 and 3 there.
DEMSAR = """
0.763 0.768 0.771 0.798  0.599 0.591 0.590 0.569  0.954 0.971 0.968 0.967  0.628 0.661 0.654 0.657  0.882 0.888 0.886 0.898
0.936 0.931 0.916 0.931  0.661 0.668 0.609 0.685  0.583 0.583 0.563 0.625  0.775 0.838 0.866 0.875  1.000 1.000 1.000 1.000
0.940 0.962 0.965 0.962  0.619 0.666 0.614 0.669  0.972 0.981 0.9751 0.975  0.957 0.978 0.946 0.970
"""


def test_published_ranks() -> None:
    scores = np.array([float(number) for number in DEMSAR.split()]).reshape(14, 1, 4)
    mean_ranks, p, critical = rank(list(scores))
    assert mean_ranks.tolist() == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    assert p == pytest.approx(stats.chi2.sf(9.28, 3), rel=1e-2)
    assert critical == pytest.approx(1.25, abs=5e-3)
    # Table 5(a) there: quantiles for 2 to 10 methods.
    for methods, quantile in enumerate((1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164), start=2):
        _, _, critical = rank([np.arange(methods)[None]] * 6)
        assert critical == pytest.approx(quantile * np.sqrt(methods * (methods + 1) / 36), rel=3e-4)


def test_ranks_of_splits() -> None:
    """Without ties, one split per task is scipy's Friedman test. Splits that repeat each other add nothing."""
    scores = np.random.default_rng(0).uniform(size=(6, 4))
    mean_ranks, p, critical = rank([split[None] for split in scores])
    assert p == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue)
    repeated_ranks, *repeated = rank([np.stack([split] * 3) for split in scores])
    assert repeated_ranks.tolist() == mean_ranks.tolist()
    assert repeated == [p, critical]


def test_false_findings_of_ranks() -> None:
    """With equal methods, few tasks and splits that share most scores, each test has a finding in at most 5% of tables."""
    trials = 500
    tasks = 3
    methods = 4
    generator = np.random.default_rng(0)
    rankings = [
        rank(list(generator.normal(size=(tasks, 1, methods)) + 0.5 * generator.normal(size=(tasks, 3, methods))))
        for _ in range(trials)
    ]
    assert np.mean([p < LEVEL for _, p, _ in rankings]) <= most(LEVEL, trials)
    assert np.mean([np.ptp(mean_ranks) >= critical for mean_ranks, _, critical in rankings]) <= most(LEVEL, trials)
