"""The evaluation of one model by one task, in a folder, on several ranks."""

import re
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from tqdm import tqdm

from megatape.distributed.exchange import on_all, on_main
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
    """The evaluation of one model by one task in a folder (see journal.py).

    Besides the files of the journal, the folder has TASK.png, a picture of the results, and TASK-dark.png, the same picture on
    a dark background.

    The constructor makes the examples, so that the input of several evaluations is checked before the first of them runs.

    Args:
        folder: Folder of this evaluation.
        name: Name of the task.
        task: Task with its settings.
        model: Outline of the model.
        ranks: Processes that divide the batches.

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
            # Number of examples in the batches up to each one, with it.
            self.ends = list(accumulate(len(batch) for batch in self.batches))
            if not self.ends or not self.ends[-1]:
                raise UserError("there is not one example: give data that has some")
        except UserError as error:
            raise _prefix_task(name, task, error) from error
        self.num_examples = self.ends[-1]
        self.journal = Journal(folder, task.prediction)

    def __str__(self) -> str:
        """Describe the number of examples."""
        return f"{self.name} {self.num_examples:,} in {len(self.batches):,} batches"

    def open(self, origin: ModelOrigin) -> None:
        """Create the folder, or check that it belongs to this evaluation. Collective over all ranks.

        Args:
            origin: Provenance of the model.

        Raises:
            ExistingPath: The folder belongs to an evaluation with another model, other settings or other examples.
        """
        examples = Examples(self.num_examples, examples_hash(self.batches))
        self.settings = EvaluationSettings(self.name, vars(self.task), examples, origin)
        on_main(partial(self.journal.open, self.settings), self.ranks.topology)

    def run(self, model: EvaluationModel) -> Outcome:
        """Predict what is missing in the opened folder, and write the results. Collective over all ranks.

        The results depend neither on the number of ranks nor on how often the evaluation was stopped.

        Args:
            model: The loaded model, the same one that the outline describes.

        Raises:
            UserError: The task raised an error.
        """
        topology = self.ranks.topology
        answered = set(on_main(lambda: sorted(self.journal.read()), topology))
        on_all(partial(self._predict, model, answered), topology)
        summary, measures = on_main(partial(self._finish, model), topology)
        return Outcome(summary, [Measure(**measure) for measure in measures])

    def _predict(self, model: EvaluationModel, answered: set[int]) -> None:
        """Predict this rank's share of the batches that are not answered completely."""
        missing = []
        for end, batch in zip(self.ends, self.batches, strict=True):
            numbers = range(end - len(batch), end)
            if not answered.issuperset(numbers):
                missing.append((numbers, batch))
        num_done = self.num_examples - sum(len(batch) for _, batch in missing)

        ranks = self.ranks
        # With None, tqdm shows the bar only in a terminal.
        disable = None
        if not ranks.topology.is_main:
            disable = True
        title = f"{self.name}, {model.name}"
        with tqdm(total=self.num_examples, initial=num_done, desc=title, disable=disable) as bar:
            for numbers, batch in missing[ranks.share :: ranks.shares]:
                predictions = self.task.run(model, batch)
                # All ranks of the tensor axis have the same predictions.
                if ranks.tensor.rank == 0:
                    self.journal.add(ranks.share, numbers, predictions)
                num_remaining = self.num_examples - bar.n
                bar.update(min(len(batch) * ranks.shares, num_remaining))

    def _finish(self, model: EvaluationModel) -> list[Any]:
        """Write the results. Return their summary and measures in JSON values, which all ranks get."""
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
    """Prefix an error with the task's name.

    An option at the start of the message is put into backquotes, so that commands still show it as a flag.
    """
    message = str(error)
    option = re.match(r"\w*", message)[0]  # type: ignore[index]
    if option in vars(task):
        rest = message.removeprefix(option)
        message = f"`{option}`{rest}"
    text = f"task {name}: {message}"
    if isinstance(error, OSError):
        return path_error(error, text)
    return type(error)(text)
