"""The interface of evaluation tasks, which megatape/registry.py lists.

A task's file imports torch inside functions only, because `megatape evaluate TASK --help` imports the file.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from megatape.tasks.model import EvaluationModel

Example = TypeVar("Example")
Sample = dict[str, Any]  # what came of an example, for a line of samples.jsonl


@dataclass(frozen=True)
class Measure:
    """A number of the results.

    Attributes:
        name: with its unit and what it was measured at, a column of the table.
        error: its standard error, None if there is none.
        n: of how many answers or tokens.
    """

    name: str
    value: float
    error: float | None
    n: int


class Result(Protocol):
    """Results of an evaluation."""

    @property
    def summary(self) -> str:
        """One line for the console."""

    @property
    def measures(self) -> list[Measure]:
        """The numbers that models are compared by."""

    def describe(self) -> dict[str, Any]:
        """All results, for a JSON file."""

    def draw(self, title: str, path: Path) -> None:
        """Write a picture of the results as a PNG file."""


Found = TypeVar("Found", bound=Result)


class Task(ABC, Generic[Example, Found]):
    """Base of evaluation tasks, with the types of their examples and results.

    A task is a dataclass whose fields are its options (`Annotated[type, option(...)]`). One that another task has too must mean
    the same there: both get it.

    A batch is what a rank answers at a time, and what an evaluation that was stopped begins again with. It is the same in every
    process and after a restart, so the results do not depend on either.
    """

    @abstractmethod
    def batches(self, model: EvaluationModel) -> list[list[Example]]:
        """All examples. Raises UserError if the task's settings or its data do not suit the model."""

    @abstractmethod
    def run(self, model: EvaluationModel, batch: list[Example]) -> list[Sample]:
        """What the model makes of each example, as JSON values."""

    @abstractmethod
    def result(self, model: EvaluationModel, samples: list[Sample]) -> Found:
        """The results, from the samples of all examples in their order."""

    def files(self, samples: list[Sample]) -> dict[str, str]:
        """Texts to write beside the results, by the name of their file."""
        return {}

    def paper(self) -> dict[str, dict[str, float]]:
        """Published figures: row -> name of a measure -> value."""
        return {}
