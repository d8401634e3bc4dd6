"""Difference between an encoding and the reference over all tasks of a suite, with its interval."""

from dataclasses import dataclass

import numpy as np

from megatape.lab.study.suite.analysis.hypothesis_tests import LEVEL, question_variance, t_interval
from megatape.lab.study.suite.analysis.score_table import REFERENCE, ScoreTable


@dataclass(frozen=True)
class OverallDifference:
    """Difference in mean score over all tasks between an encoding and the reference.

    An interval within a margin on both sides of zero shows that the two are equivalent up to this margin. It describes other
    seeds on these tasks, not other tasks.

    Attributes:
        seeds: Number of common seeds.
        mean: Mean over seeds.
        interval: t interval of the mean at confidence 1 - LEVEL, not corrected for the number of encodings. None with one seed.
    """

    seeds: int
    mean: float
    interval: tuple[float, float] | None


def overall_differences(table: ScoreTable) -> dict[str, OverallDifference]:
    """Return the overall difference of each encoding that has a score on all tasks with the same seeds as the reference."""
    differences = {}
    for contender in table.encodings:
        if contender == REFERENCE:
            continue
        difference = _overall_difference(table, contender)
        if difference is not None:
            differences[contender] = difference
    return differences


def _overall_difference(table: ScoreTable, contender: str) -> OverallDifference | None:
    """Return an encoding's difference, or None without a seed that both encodings have on all tasks."""
    seeds = _common_seeds(table, contender)
    if not seeds:
        return None
    differences = np.array([_mean_difference(table, contender, seed) for seed in seeds])
    mean = float(differences.mean())
    if len(seeds) == 1:
        return OverallDifference(1, mean, None)
    from_questions = _question_variance(table, contender, seeds) + _question_variance(table, REFERENCE, seeds)
    # As for a single split, seeds that agree by chance must not make the difference certain.
    spread = float(np.sqrt(max(differences.var(ddof=1), from_questions)))
    return OverallDifference(len(seeds), mean, t_interval(mean, spread, len(seeds), LEVEL))


def _common_seeds(table: ScoreTable, contender: str) -> list[int | None]:
    """Return the seeds with scores of both encodings on all tasks."""
    first_task, *other_tasks = table.tasks
    common = table.seeds(first_task, contender)
    for task in other_tasks:
        common = [seed for seed in common if seed in table.seeds(task, contender)]
    for task in table.tasks:
        common = [seed for seed in common if seed in table.seeds(task, REFERENCE)]
    return common


def _mean_difference(table: ScoreTable, contender: str, seed: int | None) -> float:
    """Return the difference of one seed, averaged over tasks."""
    differences = []
    for task in table.tasks:
        score = table.task_score(task, contender, seed)
        reference_score = table.task_score(task, REFERENCE, seed)
        assert score is not None
        assert reference_score is not None
        differences.append(score - reference_score)
    return float(np.mean(differences))


def _question_variance(table: ScoreTable, contender: str, seeds: list[int | None]) -> float:
    """Return the variance of an encoding's mean score over tasks that drawing other questions would cause."""
    total = 0.0
    for task in table.tasks:
        splits = table.generalization_splits(task)
        for split in splits:
            cell = table.cell(task, split, contender)
            scores = np.array([cell.scores[seed] for seed in seeds])
            asked = np.array([cell.asked[seed] for seed in seeds])
            total += float(question_variance(scores, asked)) / len(splits) ** 2
    return total / len(table.tasks) ** 2
