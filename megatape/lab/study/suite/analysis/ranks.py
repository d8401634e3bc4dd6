"""Ranks of the encodings over all tasks."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from megatape.lab.study.suite.analysis.hypothesis_tests import LEVEL, rank
from megatape.lab.study.suite.analysis.score_table import Pair, ScoreTable


@dataclass(frozen=True)
class Ranks:
    """Encodings by mean rank over tasks, the best first.

    Attributes:
        mean_ranks: Mean rank by encoding.
        p: p-value of the Friedman test, whose null hypothesis is that all encodings are equally good.
        critical: Critical difference: two encodings differ significantly if their mean ranks differ by at least as much.
        left_out: Encodings that are not ranked -> number of (task, split) pairs they do not support.
        missing: Pairs without scores of an encoding that was not run on them.
        pairs: Pairs that count.
    """

    mean_ranks: dict[str, float]
    p: float
    critical: float
    left_out: dict[str, int]
    missing: list[Pair]
    pairs: list[Pair]

    def apart(self, row: str) -> list[str]:
        """Return the encodings that differ significantly from `row`: none unless the Friedman test finds a difference."""
        if self.p >= LEVEL:
            return []
        own_rank = self.mean_ranks[row]
        return [other for other, rank in self.mean_ranks.items() if abs(rank - own_rank) >= self.critical]


def rank_encodings(table: ScoreTable) -> Ranks | None:
    """Return the encodings by mean rank. None if fewer than two of them share a split.

    An encoding that does not support some split is not ranked: a rank there would count the missing support as a loss, and a
    mean without it would count fewer and other splits. The splits count on which all other encodings have a score.
    """
    left_out = {}
    ranked = []
    for row in table.encodings:
        num_unsupported = sum(table.cell(*pair, row).reason is not None for pair in table.pairs)
        if num_unsupported:
            left_out[row] = num_unsupported
        else:
            ranked.append(row)
    complete = [pair for pair in table.pairs if all(table.cell(*pair, row).scores for row in ranked)]
    missing = [pair for pair in table.pairs if pair not in complete]
    if len(ranked) < 2 or not complete:
        return None

    # task -> mean scores [splits, encodings]
    scores: dict[str, list[list[float]]] = defaultdict(list)
    for task, split in complete:
        scores[task].append([table.cell(task, split, row).mean for row in ranked])
    ranking = rank([np.array(splits) for splits in scores.values()])
    by_rank = sorted(zip(ranked, ranking.means.tolist(), strict=True), key=lambda item: item[1])
    return Ranks(dict(by_rank), ranking.p, ranking.critical, left_out, missing, complete)
