"""Interface of evaluation tasks.

A task consists of four dataclasses: an example, a prediction, the results, and the task itself, whose fields are its options,
described in its docstring. A small task is one file, a large one a folder with task.py.

    @dataclass(frozen=True)
    class Copying(Task[list[int], Copied, Shares]):
        length: Count = 16

        prediction = Copied

        def batches(self, model: ModelOutline) -> list[list[list[int]]]: ...
        def run(self, model: EvaluationModel, batch: list[list[int]]) -> list[Copied]: ...
        def result(self, predictions: list[Copied]) -> Shares: ...

Registered in TASKS (megatape/lab/tasks/registry.py), it runs as `megatape evaluate copying MODEL --length 16`. For a complete
task, see addition.py. evaluation.py calls the methods in this order:

    batches  before any weight is loaded; the examples are hashed into settings.json
    run      for each batch without predictions in the journal
    result   once, from the predictions of all ranks; then `files` and `paper`

Import torch inside functions only: `megatape evaluate TASK --help` imports the task's file.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import PublishedRows, TaskScores

Example = TypeVar("Example")
Prediction = TypeVar("Prediction")
ScoresT = TypeVar("ScoresT", bound=TaskScores)


class Task(ABC, Generic[Example, Prediction, ScoresT]):
    """Base class for evaluation tasks, generic over examples, predictions and results.

    `Annotated[type, option(...)]` adds details to an option. Tasks named in one command share options with the same name, so
    an option must mean the same in every task.

    Batches are split across ranks, and a stopped evaluation resumes between batches, so they must be the same in every process
    and after a restart.

    Attributes:
        prediction: Dataclass of predictions. Its fields hold JSON values, are written to samples.jsonl, and include everything
            that `result` needs. Lines of an earlier version lacking a field are computed again.
    """

    prediction: ClassVar[type[Any]]

    def check(self) -> None:
        """Check the options before importing torch and loading models.

        Raises:
            UserError: An option is wrong.
        """

    @abstractmethod
    def batches(self, model: ModelOutline) -> list[list[Example]]:
        """Make all examples.

        An evaluation resumes only with equal examples. Fields declared with `compare=False` must follow from the others.

        Args:
            model: Tokenizer and limits of the model, without weights.

        Returns:
            Batches of examples. `run` gets one at a time.

        Raises:
            UserError: The options or the data do not suit the model.
        """

    @abstractmethod
    def run(self, model: EvaluationModel, batch: list[Example]) -> list[Prediction]:
        """Predict and score each example in a batch.

        Args:
            model: The loaded model.
            batch: A batch of `batches`.

        Returns:
            A prediction for each example, in order.
        """

    @abstractmethod
    def result(self, predictions: list[Prediction]) -> ScoresT:
        """Compute the results from the predictions alone.

        Args:
            predictions: Predictions of all batches, in the order of the examples.

        Returns:
            The scores, which results.md and results.json show.
        """

    def files(self, predictions: list[Prediction]) -> dict[str, str]:
        """Return additional files to write: file name -> text."""
        return {}

    def paper(self) -> PublishedRows:
        """Return published values to compare with."""
        return {}
