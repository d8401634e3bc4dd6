"""Interface of evaluation tasks.

A task has four dataclasses: an example, a prediction, the results, and the task, whose fields are its options. The docstring of
the task describes them. A small task is one file, a large one a folder with task.py.

    @dataclass(frozen=True)
    class Copying(Task[list[int], Copied, Shares]):
        length: Count = 16

        prediction = Copied

        def batches(self, model: ModelOutline) -> list[list[list[int]]]: ...
        def run(self, model: EvaluationModel, batch: list[list[int]]) -> list[Copied]: ...
        def result(self, predictions: list[Copied]) -> Shares: ...

A line of TASKS in megatape/registry.py makes it `megatape evaluate copying MODEL --length 16`. addition.py is a whole task.
model.py has the interface of models, result.py the interface of results. evaluation.py runs a task, journal.py stores its
predictions, and record.py has the content of settings.json and results.json.

A task's file imports torch inside functions only, because `megatape evaluate TASK --help` imports the file.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import Result
from megatape.moved_modules import old_names

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


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
