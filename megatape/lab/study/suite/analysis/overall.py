"""Difference between an encoding and the reference over all tasks of a suite, with its interval."""

from dataclasses import dataclass

import numpy as np

from megatape.lab.study.suite.analysis.hypothesis_tests import LEVEL, t_interval
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
    by_task = []
    for task in table.tasks:
        by_seed = {}
        for seed in table.seeds(task, contender):
            score = table.task_score(task, contender, seed)
            reference_score = table.task_score(task, REFERENCE, seed)
            if score is not None and reference_score is not None:
                by_seed[seed] = score - reference_score
        by_task.append(by_seed)

    seeds = [seed for seed in by_task[0] if all(seed in by_seed for by_seed in by_task)]
    if not seeds:
        return None
    differences = np.array([np.mean([by_seed[seed] for by_seed in by_task]) for seed in seeds])
    mean = float(differences.mean())
    if len(seeds) == 1:
        return OverallDifference(1, mean, None)
    spread = float(differences.std(ddof=1))
    return OverallDifference(len(seeds), mean, t_interval(mean, spread, len(seeds), LEVEL))
