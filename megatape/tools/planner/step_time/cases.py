"""The bad and the good case of an estimate, and the range between them."""

from enum import Enum
from math import sqrt
from typing import Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


class Case(Enum):
    """Case of an estimate: the lowest or highest speed to expect."""

    BAD = "bad"
    GOOD = "good"


class ByCase(NamedTuple, Generic[Value]):
    """A value that differs by case."""

    bad: Value
    good: Value

    def of(self, case: Case) -> Value:
        """Return the value in a case."""
        if case is Case.BAD:
            return self.bad
        return self.good


class Range(NamedTuple):
    """A range of numbers."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Geometric mean of the limits."""
        return sqrt(self.low * self.high)
