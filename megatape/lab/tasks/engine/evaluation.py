"""Evaluation of one model by one task, resumable and on several ranks."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

from megatape.distributed.values.exchange import on_all, on_main
from megatape.errors import UserError, marked_message, path_error, path_errors
from megatape.lab import pictures
from megatape.lab.tasks.engine.journal import EvaluationJournal
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.provenance import examples_hash, software
from megatape.lab.tasks.engine.ranks import SINGLE_RANK, EvaluationRanks
from megatape.lab.tasks.engine.record import EvaluationResults, EvaluationSettings, Examples, ModelOrigin, Outcome
from megatape.lab.tasks.engine.result import Measure
from megatape.lab.tasks.engine.task import Task
from megatape.utils.files.atomic import write_atomically


class TaskExamples:
    """The examples of a task for one model. A command makes those of all its evaluations before running the first.

    Args:
        name: Task name.
        task: Task with its options.
        model: Outline of the model.

    Attributes:
        num_examples: Number of examples.

    Raises:
        UserError: There are no examples, or the task raised an error. The message names the task.
    """

    def __init__(self, name: str, task: Task[Any, Any, Any], model: ModelOutline) -> None:
        self.name = name
        self.task = task
        try:
            with path_errors():
                self.batches = task.batches(model)
            self.num_examples = sum(len(batch) for batch in self.batches)
            if not self.num_examples:
                raise UserError("there is not one example: give data that has some")
        except UserError as error:
            raise _prefix_task(name, error) from error

    def __str__(self) -> str:
        """Task name and number of examples."""
        return f"{self.name} {self.num_examples:,} in {len(self.batches):,} batches"

    def settings(self, origin: ModelOrigin) -> EvaluationSettings:
        """Return the settings of the evaluation of a model.

        Args:
            origin: Provenance of the model.
        """
        recorded = Examples(self.num_examples, examples_hash(self.batches))
        return EvaluationSettings(self.name, vars(self.task), recorded, origin)


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of one model by one task.

    Attributes:
        examples: The task and its examples.
        settings: Everything that determines the predictions.
        journal: Predictions in the evaluation's folder.
        ranks: Processes sharing the batches.
    """

    examples: TaskExamples
    settings: EvaluationSettings
    journal: EvaluationJournal[Any]
    ranks: EvaluationRanks

    @classmethod
    def open(cls, folder: Path, examples: TaskExamples, origin: ModelOrigin, ranks: EvaluationRanks = SINGLE_RANK) -> Self:
        """Create a folder for an evaluation, or check that it belongs to this one. Collective.

        Args:
            folder: Folder for the journal (see journal.py) and for pictures, TASK.png and TASK-dark.png.
            examples: The task and its examples.
            origin: Provenance of the model.
            ranks: Processes sharing the batches.

        Raises:
            ExistingPath: The folder belongs to an evaluation of another model, or with other options or examples.
        """
        settings = examples.settings(origin)
        journal = EvaluationJournal(folder, examples.task.prediction)
        on_main(partial(journal.open, settings), ranks.topology)
        return cls(examples, settings, journal, ranks)

    def run(self, model: EvaluationModel) -> Outcome:
        """Predict examples missing in the journal, and write the results. Collective.

        Results depend neither on the number of ranks nor on interruptions.

        Args:
            model: The model described by the outline, loaded.

        Raises:
            UserError: The task raised an error.
        """
        topology = self.ranks.topology
        predicted = set(on_main(lambda: sorted(self.journal.read()), topology))
        on_all(partial(self._predict, model, predicted), topology)
        summary, measures = on_main(partial(self._finish, model), topology)
        return Outcome(summary, [Measure(**measure) for measure in measures])

    def _predict(self, model: EvaluationModel, predicted: set[int]) -> None:
        """Predict this rank's share of the batches with examples not yet predicted."""
        examples = self.examples
        incomplete = []
        first = 0
        for batch in examples.batches:
            numbers = range(first, first + len(batch))
            first += len(batch)
            if not predicted.issuperset(numbers):
                incomplete.append((numbers, batch))
        num_done = examples.num_examples - sum(len(batch) for _, batch in incomplete)

        ranks = self.ranks
        # With None, tqdm shows the bar only in a terminal.
        disable = None if ranks.topology.is_main else True
        title = f"{examples.name}, {model.name}"
        with tqdm(total=examples.num_examples, initial=num_done, desc=title, disable=disable) as bar:
            for numbers, batch in incomplete[ranks.share :: ranks.num_shares]:
                predictions = examples.task.run(model, batch)
                # All ranks on the tensor axis have the same predictions.
                if ranks.tensor.rank == 0:
                    self.journal.add(ranks.share, numbers, predictions)
                num_remaining = examples.num_examples - bar.n
                bar.update(min(len(batch) * ranks.num_shares, num_remaining))

    def _finish(self, model: EvaluationModel) -> list[Any]:
        """Write the results. Return summary and measures in JSON values, because `on_main` sends them to all ranks."""
        examples = self.examples
        by_number = self.journal.read()
        predictions = [by_number[number] for number in range(examples.num_examples)]
        result = examples.task.result(predictions)
        for file, text in examples.task.files(predictions).items():
            write_atomically(self.journal.folder / file, text.encode())

        measures = result.measures
        results = EvaluationResults(self.settings, software(), measures, examples.task.paper(), result.describe())
        self.journal.complete(predictions, results)
        title = f"{model.name}\n{result.summary}"
        pictures.save(self.journal.folder / f"{examples.name}.png", result.draw, title)
        return [result.summary, [asdict(measure) for measure in measures]]


def _prefix_task(name: str, error: UserError) -> UserError:
    """Prefix an error with the task name."""
    text = f"task {name}: {marked_message(error)}"
    if isinstance(error, OSError):
        return path_error(error, text)
    return type(error)(text)
