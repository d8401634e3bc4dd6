"""Summary of records with known effects: differences, their tests and their intervals."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from scipy import stats

from megatape.lab.study.suite.analysis.difference_tests import DifferenceTest, Permutation, Welch
from megatape.lab.study.suite.analysis.hypothesis_tests import exact_p
from megatape.lab.study.suite.analysis.score_table import CellKey
from megatape.lab.study.suite.analysis.summary import Summary
from megatape.lab.study.suite.scores.record import Record
from tests.helpers.lab.suite_records import make_records

# Rows of equal encodings, besides the reference
ROWS = tuple("abcdefgh")
# Comparing two encodings without an effect
PAIR = CellKey("copy", "test", "alibi")


def test_all_comparisons_are_counted(records: list[Record]) -> None:
    """The smallest of 28 p-values is 28 times the uncorrected one."""
    summary = Summary(records, Welch)
    differences = summary.differences
    smallest = min(differences, key=lambda key: differences[key].p or 0)
    scores = summary.scores.cell(*smallest).scores
    reference = summary.scores.cell(smallest.task, smallest.split, "rope").scores

    uncorrected_p = stats.ttest_ind(list(scores.values()), list(reference.values()), equal_var=False).pvalue

    p = differences[smallest].p
    assert p is not None
    assert p == pytest.approx(28 * uncorrected_p)
    assert p < 1e-4


def test_needed_seeds_are_for_the_corrected_level(records: list[Record], pair: list[Record]) -> None:
    needed = Summary(records, Welch).differences[PAIR].needed
    needed_alone = Summary(pair, Welch).differences[PAIR].needed

    assert needed is not None
    assert needed_alone is not None
    assert needed > needed_alone


@pytest.fixture
def pair(records: list[Record]) -> list[Record]:
    """Records of PAIR and of the reference on the same split: one comparison."""
    return [record for record in records if (record.task, record.split) == PAIR[:2] and record.contender in ("alibi", "rope")]


@pytest.mark.parametrize("test", [Permutation, Welch])
def test_p_is_that_of_the_chosen_test(pair: list[Record], test: type[DifferenceTest]) -> None:
    scores: dict[str, list[float | None]] = {"alibi": [], "rope": []}
    for record in pair:
        scores[record.contender].append(record.score)
    resampling = stats.PermutationMethod(n_resamples=1000)
    method = {"method": resampling} if test is Permutation else {}
    expected = stats.ttest_ind(scores["alibi"], scores["rope"], equal_var=False, **method).pvalue

    summary = Summary(pair, test)

    assert summary.differences[PAIR].p == pytest.approx(expected, rel=1e-6)


class CachedPermutation(Permutation):
    """Test of scores of 0 and 1 that computes each p-value once."""

    def p(self) -> float:
        return p_of_counts(len(self.encoding.scores), int(self.encoding.scores.sum()), int(self.reference.scores.sum()))


@cache
def p_of_counts(seeds: int, count: int, reference_count: int) -> float:
    return exact_p(np.arange(seeds) < count, np.arange(seeds) < reference_count)


class QuickWelch(Welch):
    """Test without the numbers of needed seeds, which take the most time and decide nothing."""

    def needed(self, level: float) -> int | None:
        return None


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
def test_false_findings_where_seeds_learn_or_not(records: list[Record]) -> None:
    """With equal encodings on tasks that a seed learns with an unknown chance, at most 5% of tables have a mark.

    With Welch's t-test, one in five tables of three seeds has one."""
    template = records[0]
    generator = np.random.default_rng(0)
    trials = 150

    def rate_of_marked_tables(seeds: int, test: type[DifferenceTest]) -> float:
        marked = []
        for _ in range(trials):
            trial_records = list(_records_of_learning_by_chance(template, seeds, generator))
            differences = Summary(trial_records, test).differences
            marked.append(any(difference.significant for difference in differences.values()))
        return float(np.mean(marked))

    assert rate_of_marked_tables(3, QuickWelch) > 0.1
    for seeds in (3, 8):
        assert rate_of_marked_tables(seeds, CachedPermutation) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize("number", range(20))
def test_intervals_do_not_contradict_the_marks(number: int) -> None:
    """Intervals agree with the marks even with few seeds, and if differences pass only the later levels of Holm's method."""
    seeds = 3 + number % 4
    effects = {(row, "long"): 0.015 * index for index, row in enumerate(ROWS)}

    summary = Summary(make_records([f"t{number}"], ["rope", *ROWS], seeds, effects, 0.01, limited=()), Welch)

    for key, difference in summary.differences.items():
        assert difference.interval is not None
        low, high = difference.interval
        contains_zero = low <= 0 <= high
        assert contains_zero == (not difference.significant), key
