"""Summary of a suite's records: scores by encoding and split, tested differences from the reference, ranks."""

from functools import cached_property

from megatape.lab.study.suite.analysis.differences import Difference, compare_with_reference, confidence
from megatape.lab.study.suite.analysis.ranks import Ranks, rank_encodings
from megatape.lab.study.suite.analysis.score_table import CellKey, ScoreTable


class Summary(ScoreTable):
    """Scores of a suite with their statistics, each computed once."""

    @cached_property
    def differences(self) -> dict[CellKey, Difference]:
        """Differences of all encodings that have a seed in common with the reference."""
        return compare_with_reference(self)

    @property
    def confidence(self) -> float:
        """Confidence of the intervals of all differences."""
        return confidence(self.differences.values())

    @property
    def comparisons(self) -> int:
        """Number of tested differences."""
        return sum(difference.is_tested for difference in self.differences.values())

    @cached_property
    def ranks(self) -> Ranks | None:
        """Encodings by mean rank. None if fewer than two of them share a split."""
        return rank_encodings(self)
