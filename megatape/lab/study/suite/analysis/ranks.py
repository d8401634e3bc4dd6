"""Ranks of the encodings over all tasks."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from megatape.lab.study.suite.analysis.hypothesis_tests import LEVEL, rank
from megatape.lab.study.suite.analysis.score_table import ScoreTable, TaskSplit


@dataclass(frozen=True)
class Ranks:
    """Mean ranks over tasks, with their tests.

    Attributes:
        mean_ranks: Mean rank by encoding, the best first.
        p: p-value of the null hypothesis that all encodings are equally good, see hypothesis_tests.rank.
        critical: Smallest significant difference between two mean ranks.
        left_out: Encodings not ranked -> number of splits they do not support.
        missing: Splits skipped because a ranked encoding was not run on them.
        pairs: Splits counted.
    """

    mean_ranks: dict[str, float]
    p: float
    critical: float
    left_out: dict[str, int]
    missing: list[TaskSplit]
    pairs: list[TaskSplit]

    def apart(self, contender: str) -> list[str]:
        """Return the encodings differing significantly from `contender`: none unless the test of all mean ranks finds any."""
        if self.p >= LEVEL:
            return []
        contender_rank = self.mean_ranks[contender]
        return [other for other, rank in self.mean_ranks.items() if abs(rank - contender_rank) >= self.critical]


def rank_encodings(table: ScoreTable) -> Ranks | None:
    """Rank the encodings by mean rank. Returns None if fewer than two of them share a split.

    An encoding that does not support some split is not ranked: a rank on that split would count the missing support as a loss,
    and a mean without it would count other splits than its competitors' means. A split counts if all ranked encodings have a
    score on it, and it differs from training or its task has no such split. Encodings are ranked by their mean score over a
    task's splits, because the splits of a task share their models and are not independent.
    """
    left_out = {}
    ranked = []
    for contender in table.encodings:
        num_unsupported = sum(table.cell(*pair, contender).reason is not None for pair in table.pairs)
        if num_unsupported:
            left_out[contender] = num_unsupported
        else:
            ranked.append(contender)
    complete = []
    missing = []
    for pair in table.pairs:
        if all(table.cell(*pair, contender).scores for contender in ranked):
            complete.append(pair)
        else:
            missing.append(pair)
    counted = [pair for pair in complete if pair.split in table.generalization_splits(pair.task)]
    if len(ranked) < 2 or not counted:
        return None

    splits_of_task: dict[str, list[str]] = defaultdict(list)
    for task, split in counted:
        splits_of_task[task].append(split)
    scores = []
    for task, splits in splits_of_task.items():
        scores.append([np.mean([table.cell(task, split, contender).mean for split in splits]) for contender in ranked])
    ranking = rank(np.array(scores))
    by_rank = sorted(zip(ranked, ranking.means.tolist(), strict=True), key=lambda item: item[1])
    return Ranks(dict(by_rank), ranking.p, ranking.critical, left_out, missing, counted)
