"""Differences in score between encodings and the reference, tested and corrected for their number."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from megatape.lab.study.suite.analysis import hypothesis_tests
from megatape.lab.study.suite.analysis.difference_tests import DifferenceTest, SeedScores
from megatape.lab.study.suite.analysis.score_table import REFERENCE, Cell, CellKey, ScoreTable


@dataclass(frozen=True)
class Difference:
    """Difference in score between an encoding and the reference, over their common seeds.

    Attributes:
        seeds: Number of common seeds.
        mean: Mean over seeds.
        interval: Interval of the mean at the confidence of all comparisons (`confidence`). None with one seed, and if the test
            does not estimate the spread over seeds.
        p: p-value, corrected for all comparisons. None with one seed.
        false_discovery_p: p-value, adjusted for the false discovery rate among all comparisons. None with one seed.
        needed: Number of seeds that would show the difference, see `DifferenceTest.needed`. None with one seed, and if it is
            too large.
    """

    seeds: int
    mean: float
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


def compare_with_reference(table: ScoreTable, test: type[DifferenceTest]) -> dict[CellKey, Difference]:
    """Return the differences of all encodings sharing a seed with the reference.

    Args:
        table: Scores.
        test: Test of all differences.
    """
    differences: dict[CellKey, Difference] = {}
    tests: dict[CellKey, DifferenceTest] = {}
    for task, split in table.pairs:
        for contender in table.encodings:
            if contender == REFERENCE:
                continue
            cell = table.cell(task, split, contender)
            reference = table.cell(task, split, REFERENCE)
            seeds = [seed for seed in cell.scores if seed in reference.scores]
            if not seeds:
                continue
            key = CellKey(task, split, contender)
            scores = _scores(cell, seeds)
            reference_scores = _scores(reference, seeds)
            differences[key] = Difference(len(seeds), float((scores.scores - reference_scores.scores).mean()))
            if len(seeds) > 1:
                tests[key] = test(scores, reference_scores)
    return differences | _tested(differences, tests)


def _scores(cell: Cell, seeds: Sequence[int | None]) -> SeedScores:
    """Return a cell's scores of these seeds."""
    scores = np.array([cell.scores[seed] for seed in seeds])
    asked = np.array([cell.asked[seed] for seed in seeds])
    return SeedScores(scores, float(hypothesis_tests.estimate_question_variance(scores, asked)))


def confidence(differences: Iterable[Difference]) -> float:
    """Return the confidence of all intervals: exactly the significant differences have intervals without zero."""
    corrected = [difference.p for difference in differences if difference.p is not None]
    return 1 - _interval_level(corrected)


def _interval_level(corrected: Iterable[float]) -> float:
    """Return the level at which Holm's method stops. Exactly the significant differences are below it.

    Args:
        corrected: Corrected p-value of each tested difference.
    """
    num_insignificant = sum(p >= hypothesis_tests.LEVEL for p in corrected)
    return hypothesis_tests.LEVEL / max(1, num_insignificant)


def _tested(differences: dict[CellKey, Difference], tests: dict[CellKey, DifferenceTest]) -> dict[CellKey, Difference]:
    """Return the differences that were tested, with corrected p-values, intervals and numbers of needed seeds."""
    p_values = np.array([test.p() for test in tests.values()], dtype=float)
    corrected = hypothesis_tests.holm(p_values)
    adjusted = hypothesis_tests.benjamini_hochberg(p_values)
    # Intervals use the level of the tests, so exactly the intervals of significant differences have no zero.
    level = _interval_level(corrected.tolist())
    tested = {}
    for (key, test), p, adjusted_p in zip(tests.items(), corrected, adjusted, strict=True):
        interval = None
        if test.estimates_spread:
            interval = test.interval(level)
        tested[key] = replace(
            differences[key],
            p=float(p),
            false_discovery_p=float(adjusted_p),
            needed=test.needed(hypothesis_tests.LEVEL / len(tests)),
            interval=interval,
        )
    return tested
