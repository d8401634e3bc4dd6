"""Summary of a suite's records: scores by encoding and split, tested differences from the reference, ranks."""

from collections.abc import Iterable
from functools import cached_property

from megatape.lab.study.suite.analysis.difference_tests import DifferenceTest, Permutation
from megatape.lab.study.suite.analysis.differences import Difference, compare_with_reference, confidence
from megatape.lab.study.suite.analysis.overall import OverallDifference, overall_differences
from megatape.lab.study.suite.analysis.ranks import Ranks, rank_encodings
from megatape.lab.study.suite.analysis.score_table import CellKey, ScoreTable
from megatape.lab.study.suite.scores.record import Record


class Summary:
    """Scores of a suite with their statistics, each computed once.

    Args:
        records: Suite records.
        test: Test of all differences, chosen before the runs.

    Attributes:
        scores: Scores by task, split and contender.
    """

    def __init__(self, records: Iterable[Record], test: type[DifferenceTest] = Permutation) -> None:
        self.scores = ScoreTable(records)
        self.test = test

    @cached_property
    def differences(self) -> dict[CellKey, Difference]:
        """Differences of all encodings sharing a seed with the reference."""
        return compare_with_reference(self.scores, self.test)

    def difference(self, task: str, split: str, contender: str) -> Difference | None:
        """Return a contender's difference from the reference, or None without a common seed."""
        return self.differences.get(CellKey(task, split, contender))

    @property
    def confidence(self) -> float:
        """Confidence of all intervals of differences."""
        return confidence(self.differences.values())

    @property
    def comparisons(self) -> int:
        """Number of tested differences."""
        return sum(difference.is_tested for difference in self.differences.values())

    @property
    def discoveries(self) -> int:
        """Number of differences found at the false discovery rate."""
        return sum(difference.is_discovery for difference in self.differences.values())

    @cached_property
    def overall(self) -> dict[str, OverallDifference]:
        """Differences from the reference over all tasks, by encoding."""
        return overall_differences(self.scores, self.test)

    @cached_property
    def ranks(self) -> Ranks | None:
        """Mean ranks of the encodings. None if fewer than two of them share a split."""
        return rank_encodings(self.scores)
