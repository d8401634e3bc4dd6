"""The interface of evaluation tasks, which megatape/registry.py lists, with their models and results.

A task's file imports torch inside functions only, because `megatape evaluate TASK --help` imports the file.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

CONFIDENCE = 0.95
Interval = tuple[float, float]


def wilson(share: float, trials: float) -> Interval:
    """Wilson's score interval (1927) in %, which has a width at 0% and 100%, too.

    share: Of independent trials, from 0 to 1. trials: Their number, or for a mean of shares the one that would vary as much.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return 100 * (middle - half) if share > 0 else 0.0, 100 * (middle + half) if share < 1 else 100.0


class ModelOutline(Protocol):
    """The part of a model from which tasks make their examples, and which needs no weights.

    Attributes:
        name: Its folder, for messages.
        tokenizer: A tokenizer of transformers.
    """

    name: str
    tokenizer: Any

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def max_positions(self) -> int:
        """The longest text in tokens."""


class EvaluationModel(ModelOutline, Protocol):
    """A trained model. B texts, N tokens."""

    def logits(self, tokens: "Tensor") -> "Tensor":
        """Float32 [B, N, V] for ids [B, N], on the model's device."""

    def continuations(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """The likeliest `num_tokens` ids, one by one, after each prompt; fewer where the model ends the text.

        All prompts have the same number of ids.
        """


@dataclass(frozen=True)
class Measure:
    """A number of the results.

    Attributes:
        name: A column of the table, with its unit and the length that it was measured at.
        value: The number.
        error: Its standard error, None if there is none.
        n: The number of answers or tokens that it is a mean of.
        interval: Its 95% interval, for a proportion; tables show it in place of the error.
    """

    name: str
    value: float
    error: float | None
    n: int
    interval: Interval | None = None


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

    def draw(self, figure: "Figure") -> None:
        """Draw the results, by megatape/lab/pictures.py where it has the kind of chart."""


Example = TypeVar("Example")
Prediction = TypeVar("Prediction")
ResultT = TypeVar("ResultT", bound=Result)


class Task(ABC, Generic[Example, Prediction, ResultT]):
    """Base of evaluation tasks, with the types of their examples, predictions and results.

    A task is a dataclass whose fields are its options, which its docstring describes; `Annotated[type, option(...)]` says more
    of one. Tasks of one command that have an option of the same name all get its value, so it must mean the same in each.

    Ranks divide the batches, and a stopped evaluation resumes with one. They are the same in every process and after a
    restart, so the results do not depend on either.

    Attributes:
        prediction: The type of predictions, a dataclass whose fields hold JSON values. A line of samples.jsonl has them, and
            everything that `result` computes from: a line of an earlier version that lacks some is computed again.
    """

    prediction: ClassVar[type[Any]]

    def check(self) -> None:
        """Check the options without a model, before torch is imported and models are loaded.

        Raises:
            UserError: An option is wrong.
        """

    @abstractmethod
    def batches(self, model: ModelOutline) -> list[list[Example]]:
        """All examples.

        Two evaluations are the same if their examples are equal; fields with `compare=False` follow from the others.

        Raises:
            UserError: The task's settings or its data do not suit the model.
        """

    @abstractmethod
    def run(self, model: EvaluationModel, batch: list[Example]) -> list[Prediction]:
        """The model's prediction for each example, and its score."""

    @abstractmethod
    def result(self, predictions: list[Prediction]) -> ResultT:
        """The results, from the predictions for all examples in their order and nothing else."""

    def files(self, predictions: list[Prediction]) -> dict[str, str]:
        """Texts to write beside the results, by the name of their file."""
        return {}

    def paper(self) -> dict[str, dict[str, float]]:
        """Published figures: row -> name of a measure -> value."""
        return {}
