"""Evaluation of one model by one task, resumable and on several ranks."""

import re
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from tqdm import tqdm

from megatape.distributed.values.exchange import on_all, on_main
from megatape.errors import UserError, path_error, path_errors
from megatape.lab import pictures
from megatape.lab.tasks.engine.journal import Journal
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.provenance import examples_hash, software
from megatape.lab.tasks.engine.ranks import SINGLE_RANK, EvaluationRanks
from megatape.lab.tasks.engine.record import EvaluationResults, EvaluationSettings, Examples, ModelOrigin, Outcome
from megatape.lab.tasks.engine.result import Measure
from megatape.lab.tasks.engine.task import Task
from megatape.utils.atomic import write_atomically


class Evaluation:
    """Evaluation of one model by one task.

    The constructor makes the examples, so that a command can check all its evaluations before running the first. `open` claims
    the folder, `run` predicts what the journal lacks and writes the results.

    Args:
        folder: Folder for the journal (see journal.py) and for pictures, TASK.png and TASK-dark.png.
        name: Task name.
        task: Task with its options.
        model: Outline of the model.
        ranks: Processes sharing the batches.

    Raises:
        UserError: There are no examples, or the task raised an error. The message names the task.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        task: Task[Any, Any, Any],
        model: ModelOutline,
        ranks: EvaluationRanks = SINGLE_RANK,
    ) -> None:
        self.folder = folder
        self.name = name
        self.task = task
        self.ranks = ranks
        self.settings: EvaluationSettings | None = None
        try:
            with path_errors():
                self.batches = task.batches(model)
            # Number of examples up to each batch's end.
            self.ends = list(accumulate(len(batch) for batch in self.batches))
            if not self.ends or not self.ends[-1]:
                raise UserError("there is not one example: give data that has some")
        except UserError as error:
            raise _prefix_task(name, task, error) from error
        self.num_examples = self.ends[-1]
        self.journal = Journal(folder, task.prediction)

    def __str__(self) -> str:
        """Task name and number of examples."""
        return f"{self.name} {self.num_examples:,} in {len(self.batches):,} batches"

    def open(self, origin: ModelOrigin) -> None:
        """Create the folder, or check that it belongs to this evaluation. Collective.

        Args:
            origin: Provenance of the model.

        Raises:
            ExistingPath: The folder belongs to an evaluation of another model, or with other options or examples.
        """
        examples = Examples(self.num_examples, examples_hash(self.batches))
        self.settings = EvaluationSettings(self.name, vars(self.task), examples, origin)
        on_main(partial(self.journal.open, self.settings), self.ranks.topology)

    def run(self, model: EvaluationModel) -> Outcome:
        """Predict examples missing in the opened journal, and write the results. Collective.

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
        incomplete = []
        for end, batch in zip(self.ends, self.batches, strict=True):
            numbers = range(end - len(batch), end)
            if not predicted.issuperset(numbers):
                incomplete.append((numbers, batch))
        num_done = self.num_examples - sum(len(batch) for _, batch in incomplete)

        ranks = self.ranks
        # With None, tqdm shows the bar only in a terminal.
        disable = None
        if not ranks.topology.is_main:
            disable = True
        title = f"{self.name}, {model.name}"
        with tqdm(total=self.num_examples, initial=num_done, desc=title, disable=disable) as bar:
            for numbers, batch in incomplete[ranks.share :: ranks.num_shares]:
                predictions = self.task.run(model, batch)
                # All ranks on the tensor axis have the same predictions.
                if ranks.tensor.rank == 0:
                    self.journal.add(ranks.share, numbers, predictions)
                num_remaining = self.num_examples - bar.n
                bar.update(min(len(batch) * ranks.num_shares, num_remaining))

    def _finish(self, model: EvaluationModel) -> list[Any]:
        """Write the results. Return summary and measures in JSON values, because `on_main` sends them to all ranks."""
        assert self.settings is not None
        by_number = self.journal.read()
        predictions = [by_number[number] for number in range(self.num_examples)]
        result = self.task.result(predictions)
        for file, text in self.task.files(predictions).items():
            write_atomically(self.folder / file, text.encode())

        measures = result.measures
        results = EvaluationResults(self.settings, software(), measures, self.task.paper(), result.describe())
        self.journal.complete(predictions, results)
        title = f"{model.name}\n{result.summary}"
        pictures.save(self.folder / f"{self.name}.png", result.draw, title)
        return [result.summary, [asdict(measure) for measure in measures]]


def _prefix_task(name: str, task: Task[Any, Any, Any], error: UserError) -> UserError:
    """Prefix an error with the task name."""
    message = str(error)
    # Commands show an option as a flag if it starts the message or has backquotes.
    first_word = re.match(r"\w*", message)[0]  # type: ignore[index]
    if first_word in vars(task):
        remainder = message.removeprefix(first_word)
        message = f"`{first_word}`{remainder}"
    text = f"task {name}: {message}"
    if isinstance(error, OSError):
        return path_error(error, text)
    return type(error)(text)
