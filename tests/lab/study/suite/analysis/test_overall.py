"""Differences over all tasks, compared with scipy on the same records."""

import numpy as np
import pytest
from scipy import stats

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
    # So many answers that other questions would change nothing.
    return [record.model_copy(update={"asked": 10**9}) for record in records]


def mean_differences(records: list[Record], row: str) -> np.ndarray:
    """Differences from rope by seed, averaged over the splits that differ from training, then over tasks."""
    scores = {(record.task, record.split, record.contender, record.seed): record.score for record in records}
    differences = []
    for seed in range(SEEDS):
        of_seed = []
        for task in TASKS:
            for split in ("long", "sparse"):
                of_seed.append(scores[task, split, row, seed] - scores[task, split, "rope", seed])
        differences.append(np.mean(of_seed))
    return np.array(differences)


@pytest.mark.parametrize("row", ["tape", "nope"])
def test_mean_and_interval(suite: list[Record], row: str) -> None:
    differences = mean_differences(suite, row)
    overall = overall_differences(ScoreTable(suite))[row]
    expected = stats.t.interval(0.95, SEEDS - 1, differences.mean(), stats.sem(differences))
    assert overall.seeds == SEEDS
    assert overall.mean == pytest.approx(differences.mean())
    assert overall.interval == pytest.approx(expected)


def test_known_effect_is_found(suite: list[Record]) -> None:
    overall = overall_differences(ScoreTable(suite))
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
    overall = overall_differences(ScoreTable(incomplete))
    assert overall["tape"].seeds == SEEDS - 1
    assert overall["tape"].mean == pytest.approx(np.delete(mean_differences(suite, "tape"), 2).mean())
    assert overall["nope"].seeds == SEEDS


def test_one_seed_has_no_interval(suite: list[Record]) -> None:
    first = [record for record in suite if record.seed == 0]
    assert overall_differences(ScoreTable(first))["tape"].interval is None


def test_a_task_without_scores_has_no_overall_difference(suite: list[Record]) -> None:
    partial = [record for record in suite if (record.task, record.contender) != ("sort", "tape")]
    assert "tape" not in overall_differences(ScoreTable(partial))


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

    difference = overall_differences(ScoreTable(agreeing))["tape"]

    assert difference.mean == pytest.approx(0.01)
    assert difference.interval is not None
    low, high = difference.interval
    assert low < 0
    assert high > 0.02


def test_the_split_drawn_as_in_training_does_not_count(suite: list[Record]) -> None:
    worse_on_test = with_scores(suite, "test", {"tape": [0.0] * SEEDS})

    difference = overall_differences(ScoreTable(worse_on_test))["tape"]

    assert difference == overall_differences(ScoreTable(suite))["tape"]
