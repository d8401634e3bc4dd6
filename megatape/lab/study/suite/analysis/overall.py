"""Difference between an encoding and the reference over all tasks of a suite, with its interval."""

from dataclasses import dataclass
from statistics import fmean

import numpy as np

from megatape.lab.study.suite.analysis.difference_tests import DifferenceTest, SeedScores
from megatape.lab.study.suite.analysis.hypothesis_tests import LEVEL, estimate_question_variance
from megatape.lab.study.suite.analysis.score_table import REFERENCE, ScoreTable


@dataclass(frozen=True)
class OverallDifference:
    """Difference in mean score over all tasks between an encoding and the reference.

    An interval within a margin on both sides of zero shows that the two are equivalent up to this margin. It describes other
    seeds on these tasks, not other tasks.

    Attributes:
        seeds: Number of common seeds.
        mean: Mean over seeds.
        interval: Interval of the mean by the suite's test at confidence 1 - LEVEL, not corrected for the number of encodings.
            None with too few seeds.
    """

    seeds: int
    mean: float
    interval: tuple[float, float] | None


def overall_differences(table: ScoreTable, test: type[DifferenceTest]) -> dict[str, OverallDifference]:
    """Return the overall difference of each encoding that has a score on all tasks with the same seeds as the reference.

    Args:
        table: Scores.
        test: Test of all differences in the suite.
    """
    differences = {}
    for contender in table.encodings:
        if contender == REFERENCE:
            continue
        difference = _overall_difference(table, contender, test)
        if difference is not None:
            differences[contender] = difference
    return differences


def _overall_difference(table: ScoreTable, contender: str, test: type[DifferenceTest]) -> OverallDifference | None:
    """Return an encoding's difference, or None without a seed that both encodings have on all tasks."""
    seeds = _common_seeds(table, contender)
    if not seeds:
        return None
    scores = _overall_scores(table, contender, seeds)
    reference_scores = _overall_scores(table, REFERENCE, seeds)
    mean = float(scores.scores.mean() - reference_scores.scores.mean())
    interval = None
    if len(seeds) > 1:
        interval = test(scores, reference_scores).interval(LEVEL)
    return OverallDifference(len(seeds), mean, interval)


def _common_seeds(table: ScoreTable, contender: str) -> list[int | None]:
    """Return the seeds with scores of both encodings on all tasks."""
    first_task, *other_tasks = table.tasks
    common = table.seeds(first_task, contender)
    for task in other_tasks:
        common = [seed for seed in common if seed in table.seeds(task, contender)]
    for task in table.tasks:
        common = [seed for seed in common if seed in table.seeds(task, REFERENCE)]
    return common


def _overall_scores(table: ScoreTable, contender: str, seeds: list[int | None]) -> SeedScores:
    """Return an encoding's mean scores over tasks."""
    means = []
    for seed in seeds:
        scores = []
        for task in table.tasks:
            score = table.task_score(task, contender, seed)
            assert score is not None
            scores.append(score)
        means.append(fmean(scores))
    return SeedScores(np.array(means), _question_variance(table, contender, seeds))


def _question_variance(table: ScoreTable, contender: str, seeds: list[int | None]) -> float:
    """Return the variance of an encoding's mean score over tasks that drawing other questions would cause."""
    total = 0.0
    for task in table.tasks:
        splits = table.generalization_splits(task)
        for split in splits:
            cell = table.cell(task, split, contender)
            scores = np.array([cell.scores[seed] for seed in seeds])
            asked = np.array([cell.asked[seed] for seed in seeds])
            total += float(estimate_question_variance(scores, asked)) / len(splits) ** 2
    return total / len(table.tasks) ** 2
