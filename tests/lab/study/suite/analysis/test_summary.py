"""Summary of records with known effects: differences, their tests and their intervals."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from scipy import stats

from megatape.lab.study.suite.analysis import hypothesis_tests
from megatape.lab.study.suite.analysis.hypothesis_tests import seeds_needed
from megatape.lab.study.suite.analysis.score_table import ALL_OR_NOTHING
from megatape.lab.study.suite.analysis.summary import Summary
from megatape.lab.study.suite.scores.record import Record
from tests.helpers.lab.suite_records import make_records

# Rows of equal encodings, besides the reference.
ROWS = tuple("abcdefgh")


def test_all_comparisons_are_counted(records: list[Record]) -> None:
    """The smallest of 28 p-values is 28 times the uncorrected one."""
    differences = Summary(records).differences.values()
    smallest = min(differences, key=lambda difference: difference.p or 0)
    assert smallest.spread is not None

    standard_error = smallest.spread / np.sqrt(5)
    uncorrected_p = 2 * stats.t.sf(abs(smallest.mean) / standard_error, 4)

    assert smallest.p == pytest.approx(28 * uncorrected_p)
    assert smallest.p is not None
    assert smallest.p < 1e-4


def test_needed_seeds_are_for_the_corrected_level(records: list[Record]) -> None:
    needed_without_correction = []
    needed = []
    for difference in Summary(records).differences.values():
        assert difference.spread is not None
        assert difference.needed == seeds_needed(difference.mean, difference.spread, 0.05 / 28)
        needed.append(difference.needed)
        needed_without_correction.append(seeds_needed(difference.mean, difference.spread or 1, 0.05))
    assert needed != needed_without_correction


@pytest.fixture
def quick_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute each exact test of 0 and 1 once, and no numbers of needed seeds, which take the most time and decide nothing."""
    exact_p = hypothesis_tests.exact_p

    @cache
    def p_of_counts(seeds: int, count: int, reference_count: int) -> float:
        return exact_p(np.arange(seeds) < count, np.arange(seeds) < reference_count)

    def cached_exact_p(scores: np.ndarray, reference: np.ndarray) -> float:
        return p_of_counts(len(scores), int(scores.sum()), int(reference.sum()))

    monkeypatch.setattr(hypothesis_tests, "exact_p", cached_exact_p)
    monkeypatch.setattr(hypothesis_tests, "seeds_needed", lambda *_: None)


def _records_of_learning_by_chance(template: Record, seeds: int, generator: np.random.Generator) -> Iterator[Record]:
    """Yield records of equal encodings on three tasks, each of which a seed learns with an unknown chance."""
    for task in ("copy", "parity", "sort"):
        chance = generator.uniform()
        for row in ("rope", *ROWS):
            for seed, learned in enumerate((generator.uniform(size=seeds) < chance).tolist()):
                changes = {
                    "task": task,
                    "contender": row,
                    "seed": seed,
                    "split": "test",
                    "kind": "encoding",
                    "score": float(learned),
                    "asked": 100,
                    "reason": None,
                }
                yield template.model_copy(update=changes)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_statistics")
def test_false_findings_where_seeds_learn_or_not(records: list[Record]) -> None:
    """With equal encodings on tasks that a seed learns with an unknown chance, at most 5% of tables have a mark.

    The paired t-test alone has one in every third table of three seeds."""
    template = records[0]
    generator = np.random.default_rng(0)
    trials = 150

    def rate_of_marked_tables(seeds: int, all_or_nothing_spread: float) -> float:
        marked = []
        for _ in range(trials):
            trial_records = list(_records_of_learning_by_chance(template, seeds, generator))
            differences = Summary(trial_records, all_or_nothing_spread).differences
            marked.append(any(difference.significant for difference in differences.values()))
        return float(np.mean(marked))

    rate_without_exact_tests = rate_of_marked_tables(3, all_or_nothing_spread=2)
    assert rate_without_exact_tests > 0.2
    for seeds in (3, 8):
        assert rate_of_marked_tables(seeds, ALL_OR_NOTHING) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize("number", range(20))
def test_intervals_do_not_contradict_the_marks(number: int) -> None:
    """This holds even with few seeds, and if differences pass only the later levels of Holm's method."""
    seeds = 3 + number % 4
    effects = {(row, "long"): 0.015 * index for index, row in enumerate(ROWS)}

    summary = Summary(make_records([f"t{number}"], ["rope", *ROWS], seeds, effects, 0.01, limited=()))

    for key, difference in summary.differences.items():
        assert difference.interval is not None
        low, high = difference.interval
        contains_zero = low <= 0 <= high
        assert contains_zero == (not difference.significant), key
