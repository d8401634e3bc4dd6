"""Interface of evaluation tasks, with their models and results. megatape/registry.py lists the tasks.

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
    """Return Wilson's score interval (1927) in %. It has a width at 0% and 100%, too.

    Args:
        share: Share of successful independent trials, from 0 to 1.
        trials: Number of trials. For a mean of shares, the number of trials whose share would vary as much.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low = 0.0
    if share > 0:
        low = 100 * (middle - half)
    high = 100.0
    if share < 1:
        high = 100 * (middle + half)
    return low, high


class ModelOutline(Protocol):
    """The part of a model that tasks need for building examples: tokenizer and limits, but no weights.

    Attributes:
        name: Folder of the model, for messages.
        tokenizer: Tokenizer of transformers.
    """

    name: str
    tokenizer: Any

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def max_positions(self) -> int:
        """Number of tokens of the longest text."""


class EvaluationModel(ModelOutline, Protocol):
    """A trained model. B texts, N tokens."""

    def logits(self, tokens: "Tensor") -> "Tensor":
        """Return the logits, float32 [B, N, V], for ids [B, N], on the model's device."""

    def continuations(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Continue each prompt greedily by `num_tokens` ids, or fewer if the model ends the text.

        Args:
            prompts: Ids of each prompt, equally many.
            num_tokens: Number of ids to add.
        """


@dataclass(frozen=True)
class Measure:
    """A number of the results.

    Attributes:
        name: Name of its column in the table, with unit and length of the texts.
        value: Value of the measure.
        error: Standard error, None if it is unknown.
        n: Number of answers or tokens that the value averages.
        interval: 95% interval of a proportion. Tables show it instead of the error.
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
        """Numbers for comparing models."""

    def describe(self) -> dict[str, Any]:
        """Return all results, for a JSON file."""

    def draw(self, figure: "Figure") -> None:
        """Draw the results. megatape/lab/pictures.py has the common kinds of charts."""


Example = TypeVar("Example")
Prediction = TypeVar("Prediction")
ResultT = TypeVar("ResultT", bound=Result)


class Task(ABC, Generic[Example, Prediction, ResultT]):
    """Base class of evaluation tasks, with the types of their examples, predictions and results.

    A task is a dataclass. Its fields are its options, described in its docstring; `Annotated[type, option(...)]` adds details.
    Tasks of one command with an option of the same name all get its value, so it must mean the same in each.

    Ranks divide the batches, and a stopped evaluation resumes between two of them. Batches are the same in every process and
    after a restart, so the results depend on neither.

    Attributes:
        prediction: Type of predictions, a dataclass whose fields hold JSON values, including everything that `result` needs.
            They are the fields of a line of samples.jsonl. A line of an earlier version without some of them is computed again.
    """

    prediction: ClassVar[type[Any]]

    def check(self) -> None:
        """Check the options without a model, before torch is imported and models are loaded.

        Raises:
            UserError: An option is wrong.
        """

    @abstractmethod
    def batches(self, model: ModelOutline) -> list[list[Example]]:
        """Make all examples.

        Evaluations with equal examples are the same. Fields with `compare=False` must follow from the others.

        Raises:
            UserError: The task's settings or its data do not suit the model.
        """

    @abstractmethod
    def run(self, model: EvaluationModel, batch: list[Example]) -> list[Prediction]:
        """Predict and score each example of a batch."""

    @abstractmethod
    def result(self, predictions: list[Prediction]) -> ResultT:
        """Compute the results from nothing but the predictions for all examples, in order."""

    def files(self, predictions: list[Prediction]) -> dict[str, str]:
        """Return texts to write beside the results, by file name."""
        return {}

    def paper(self) -> dict[str, dict[str, float]]:
        """Return published values: row -> name of a measure -> value."""
        return {}
