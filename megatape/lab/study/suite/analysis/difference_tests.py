"""Tests of a difference between two encodings. A plan chooses one of them before its runs, for all differences."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from megatape.lab.study.suite.analysis.hypothesis_tests import (
    Comparison,
    exact_interval,
    exact_p,
    interval_of,
    seeds_needed,
    seeds_to_separate,
    welch_comparison,
    welch_p,
)

# Test of plans that choose none, a name in DIFFERENCE_TESTS.
DEFAULT_TEST = "permutation"


@dataclass(frozen=True)
class SeedScores:
    """Scores of an encoding by seed, on a split or averaged over several.

    Attributes:
        scores: Shares of right answers, [seeds].
        question_variance: Variance of a score that drawing other questions would cause.
    """

    scores: np.ndarray
    question_variance: float


class DifferenceTest(ABC):
    """Test of the difference between an encoding and the reference.

    The runs of both encodings count as independent. A seed gives both the same samples and initial weights, but in our suite,
    this makes their scores no more similar: the variance of the differences is the sum of both variances
    (docs/suite_explained.md).

    Attributes:
        description: The test as tables name it, with an article.
        interval_name: Kind of its intervals.
        estimates_spread: Whether it estimates the spread over seeds. Without the spread, tables show neither the number of
            needed seeds nor intervals of single splits.
    """

    description: ClassVar[str]
    interval_name: ClassVar[str]
    estimates_spread: ClassVar[bool]

    def __init__(self, encoding: SeedScores, reference: SeedScores) -> None:
        self.encoding = encoding
        self.reference = reference

    @abstractmethod
    def p(self) -> float:
        """Return the two-sided p-value, not corrected for the number of comparisons."""

    @abstractmethod
    def interval(self, level: float) -> tuple[float, float] | None:
        """Return the interval of differences that the test does not reject at a level, or None if it rejects none."""

    def needed(self, level: float) -> int | None:
        """Return the number of seeds that would show a difference of this size at a level, or None if unknown or too large."""
        return None

    @classmethod
    def least_seeds(cls, level: float) -> int | None:
        """Return the number of seeds below which no difference passes at a level, or None if there is no such number."""
        return None


class Permutation(DifferenceTest):
    """Exact permutation test, see `exact_p`. It holds for any scores, also if some seeds learn a task and others do not.

    Its interval contains the differences by which all runs of an encoding could be better. On a single split, where all seeds
    may have 0% or 100%, that says too little about other seeds.
    """

    description = "the exact permutation test"
    interval_name = "permutation interval"
    estimates_spread = False

    def p(self) -> float:
        return exact_p(self.encoding.scores, self.reference.scores)

    def interval(self, level: float) -> tuple[float, float] | None:
        return exact_interval(self.encoding.scores, self.reference.scores, level)

    @classmethod
    def least_seeds(cls, level: float) -> int | None:
        return seeds_to_separate(level)


class Welch(DifferenceTest):
    """Welch's t-test, see `welch_comparison`. Few seeds suffice, but if only some seeds learn a task, it finds too much."""

    description = "Welch's t-test"
    interval_name = "t interval"
    estimates_spread = True

    @property
    def _comparison(self) -> Comparison:
        return welch_comparison(
            self.encoding.scores,
            self.reference.scores,
            self.encoding.question_variance,
            self.reference.question_variance,
        )

    def p(self) -> float:
        return float(welch_p(self._comparison))

    def interval(self, level: float) -> tuple[float, float] | None:
        return interval_of(self._comparison, level)

    def needed(self, level: float) -> int | None:
        return seeds_needed(self._comparison, level)


# Tests by their name in plans and in --test.
DIFFERENCE_TESTS: dict[str, type[DifferenceTest]] = {"permutation": Permutation, "welch": Welch}
