"""Differences over all tasks, compared with scipy on the same records."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from megatape.lab.study.suite.analysis.difference_tests import Permutation, Welch
from megatape.lab.study.suite.analysis.hypothesis_tests import exact_interval
from megatape.lab.study.suite.analysis.overall import overall_differences
from megatape.lab.study.suite.analysis.score_table import ScoreTable
from megatape.lab.study.suite.scores.record import Record
from tests.helpers.lab.suite_records import make_records

TASKS = ["copy", "parity", "sort"]
SEEDS = 4


@pytest.fixture(scope="module")
def suite() -> list[Record]:
    """Records of an encoding that is five points better beyond the training distribution, and of one that is equal."""
    effects = {("tape", split): 0.05 for split in ("long", "sparse")}
    records = make_records(TASKS, ["rope", "tape", "nope"], SEEDS, effects, 0.01, limited=())
    # So many answers that choosing other questions would change nothing
    return [record.model_copy(update={"asked": 10**9}) for record in records]


def mean_scores(records: list[Record], row: str) -> np.ndarray:
    """Scores by seed, averaged over the splits that differ from training, then over tasks."""
    scores = {(record.task, record.split, record.contender, record.seed): record.score for record in records}
    means = []
    for seed in range(SEEDS):
        of_seed = []
        for task, split in product(TASKS, ("long", "sparse")):
            score = scores[task, split, row, seed]
            assert score is not None
            of_seed.append(score)
        means.append(np.mean(of_seed))
    return np.array(means)


@pytest.mark.parametrize("row", ["tape", "nope"])
def test_mean_and_interval_of_the_t_test(suite: list[Record], row: str) -> None:
    """The runs of both encodings are independent, as in the tests of single splits."""
    scores = mean_scores(suite, row)
    reference_scores = mean_scores(suite, "rope")

    overall = overall_differences(ScoreTable(suite), Welch)[row]

    expected = stats.ttest_ind(scores, reference_scores, equal_var=False).confidence_interval(0.95)
    assert overall.seeds == SEEDS
    assert overall.mean == pytest.approx(scores.mean() - reference_scores.mean())
    assert overall.interval == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("row", ["tape", "nope"])
def test_mean_and_interval_of_the_permutation_test(suite: list[Record], row: str) -> None:
    scores = mean_scores(suite, row)
    reference_scores = mean_scores(suite, "rope")

    overall = overall_differences(ScoreTable(suite), Permutation)[row]

    assert overall.mean == pytest.approx(scores.mean() - reference_scores.mean())
    assert overall.interval == pytest.approx(exact_interval(scores, reference_scores, 0.05))


def test_the_order_of_the_seeds_does_not_matter(suite: list[Record]) -> None:
    """An interval of paired differences would change."""
    swapped = []
    for record in suite:
        seed = record.seed
        if record.contender == "tape" and seed is not None:
            seed = SEEDS - 1 - seed
        swapped.append(record.model_copy(update={"seed": seed}))

    for test in (Permutation, Welch):
        interval = overall_differences(ScoreTable(suite), test)["tape"].interval
        assert overall_differences(ScoreTable(swapped), test)["tape"].interval == pytest.approx(interval)


def test_known_effect_is_found(suite: list[Record]) -> None:
    overall = overall_differences(ScoreTable(suite), Welch)
    tape_interval = overall["tape"].interval
    nope_interval = overall["nope"].interval
    assert tape_interval is not None
    assert nope_interval is not None
    assert 0 < tape_interval[0] < 0.05 < tape_interval[1]
    assert nope_interval[0] < 0 < nope_interval[1]


def test_only_common_seeds_of_all_tasks_count(suite: list[Record]) -> None:
    """A seed without a score on one split of one task is left out everywhere."""
    incomplete = [
        record for record in suite if (record.task, record.split, record.contender, record.seed) != ("sort", "long", "tape", 2)
    ]
    overall = overall_differences(ScoreTable(incomplete), Welch)
    assert overall["tape"].seeds == SEEDS - 1
    differences = mean_scores(suite, "tape") - mean_scores(suite, "rope")
    assert overall["tape"].mean == pytest.approx(np.delete(differences, 2).mean())
    assert overall["nope"].seeds == SEEDS


def test_one_seed_has_no_interval(suite: list[Record]) -> None:
    first = [record for record in suite if record.seed == 0]
    assert overall_differences(ScoreTable(first), Welch)["tape"].interval is None


def test_a_task_without_scores_has_no_overall_difference(suite: list[Record]) -> None:
    partial = [record for record in suite if (record.task, record.contender) != ("sort", "tape")]
    assert "tape" not in overall_differences(ScoreTable(partial), Welch)


def with_scores(records: list[Record], split: str, scores: dict[str, list[float]]) -> list[Record]:
    """Return the records with other scores on a split of all tasks, by encoding and seed, from 100 answers each."""
    changed = []
    for record in records:
        if record.split == split and record.contender in scores:
            assert record.seed is not None
            score = scores[record.contender][record.seed]
            changed.append(record.model_copy(update={"score": score, "asked": 100}))
        else:
            changed.append(record)
    return changed


def test_seeds_that_agree_by_chance_are_not_certain(suite: list[Record]) -> None:
    """The interval is at least as wide as other questions would make it."""
    records = [record for record in suite if record.split == "long"]
    agreeing = with_scores(records, "long", {"rope": [0.9] * SEEDS, "tape": [0.91] * SEEDS})

    difference = overall_differences(ScoreTable(agreeing), Welch)["tape"]

    assert difference.mean == pytest.approx(0.01)
    assert difference.interval is not None
    low, high = difference.interval
    assert low < 0
    assert high > 0.02


def test_the_split_drawn_as_in_training_does_not_count(suite: list[Record]) -> None:
    worse_on_test = with_scores(suite, "test", {"tape": [0.0] * SEEDS})

    difference = overall_differences(ScoreTable(worse_on_test), Welch)["tape"]

    assert difference == overall_differences(ScoreTable(suite), Welch)["tape"]
