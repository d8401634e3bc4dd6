"""Differences in score between encodings and the reference, tested and corrected for their number."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from megatape.lab.study.suite.analysis import hypothesis_tests
from megatape.lab.study.suite.analysis.score_table import REFERENCE, CellKey, ScoreTable


@dataclass(frozen=True)
class Difference:
    """Difference in score between an encoding and the reference, over their common seeds.

    Attributes:
        seeds: Number of common seeds.
        mean: Mean over seeds.
        spread: Standard deviation of the paired differences. None with one seed, and on a task of `ScoreTable.all_or_nothing`.
        interval: t interval of the mean at the confidence of all comparisons (`confidence`). None in the same cases.
        p: p-value, corrected for all comparisons. None with one seed.
        false_discovery_p: p-value, adjusted for the false discovery rate among all comparisons. None with one seed.
        needed: Number of seeds that would show the difference; without a spread, if the scores of the two encodings did not
            overlap. None with one seed, and above hypothesis_tests.MAX_SEEDS.
    """

    seeds: int
    mean: float
    spread: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    false_discovery_p: float | None = None
    needed: int | None = None

    @property
    def is_tested(self) -> bool:
        """Whether there are enough seeds for a test."""
        return self.p is not None

    @property
    def is_discovery(self) -> bool:
        """Whether the encoding differs from the reference, at a false discovery rate of hypothesis_tests.LEVEL."""
        return self.false_discovery_p is not None and self.false_discovery_p < hypothesis_tests.LEVEL

    @property
    def significant(self) -> bool:
        """Whether the encoding differs from the reference."""
        return self.p is not None and self.p < hypothesis_tests.LEVEL


def compare_with_reference(table: ScoreTable) -> dict[CellKey, Difference]:
    """Return the differences of all encodings sharing a seed with the reference."""
    differences: dict[CellKey, Difference] = {}
    for task, split in table.pairs:
        for contender in table.encodings:
            if contender == REFERENCE:
                continue
            difference = _uncorrected_difference(table, task, split, contender)
            if difference is not None:
                differences[CellKey(task, split, contender)] = difference
    return _correct(differences)


def confidence(differences: Iterable[Difference]) -> float:
    """Return the confidence of all intervals: exactly the significant differences have intervals without zero."""
    insignificant = [difference for difference in differences if difference.is_tested and not difference.significant]
    return 1 - hypothesis_tests.LEVEL / max(1, len(insignificant))


def _correct(differences: dict[CellKey, Difference]) -> dict[CellKey, Difference]:
    """Correct the p-values, and add intervals and the numbers of seeds that would show the differences."""
    corrected_differences = dict(differences)
    tested = {key: difference for key, difference in differences.items() if difference.is_tested}
    p_values = np.array([difference.p for difference in tested.values()], dtype=float)
    corrected = hypothesis_tests.holm(p_values)
    adjusted = hypothesis_tests.benjamini_hochberg(p_values)
    # Holm's method stops at this level, so exactly the significant differences are below it. Their intervals use it as well.
    level = hypothesis_tests.LEVEL / max(1, int((corrected >= hypothesis_tests.LEVEL).sum()))
    for (key, difference), p, adjusted_p in zip(tested.items(), corrected, adjusted, strict=True):
        strictest = hypothesis_tests.LEVEL / len(tested)
        mean = difference.mean
        spread = difference.spread
        interval = None
        if spread is None:
            needed = hypothesis_tests.seeds_to_separate(strictest)
        else:
            needed = hypothesis_tests.seeds_needed(mean, spread, strictest)
            interval = hypothesis_tests.t_interval(mean, spread, difference.seeds, level)
        corrected_differences[key] = replace(
            difference, p=float(p), false_discovery_p=float(adjusted_p), needed=needed, interval=interval
        )
    return corrected_differences


def _uncorrected_difference(table: ScoreTable, task: str, split: str, contender: str) -> Difference | None:
    """Return a difference with an uncorrected p-value, or None without a common seed."""
    cell = table.cell(task, split, contender)
    reference = table.cell(task, split, REFERENCE)
    seeds = [seed for seed in cell.scores if seed in reference.scores]
    if not seeds:
        return None
    scores = np.array([cell.scores[seed] for seed in seeds])
    reference_scores = np.array([reference.scores[seed] for seed in seeds])
    mean = (scores - reference_scores).mean()
    if len(seeds) == 1:
        return Difference(1, float(mean))
    if task in table.all_or_nothing:
        return Difference(len(seeds), float(mean), p=hypothesis_tests.exact_p(scores, reference_scores))
    asked = np.array([cell.asked[seed] for seed in seeds])
    reference_asked = np.array([reference.asked[seed] for seed in seeds])
    spread = hypothesis_tests.spread_of_differences(scores, reference_scores, asked, reference_asked)
    p = hypothesis_tests.paired_p(mean, spread, len(seeds))
    return Difference(len(seeds), float(mean), float(spread), p=float(p))
