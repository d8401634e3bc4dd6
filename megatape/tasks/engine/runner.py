"""Runs an evaluation task: in memory, or in a folder, on several ranks, from where it was stopped."""

from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from tqdm import tqdm

from megatape import pictures
from megatape.errors import UserError
from megatape.files import write_atomically
from megatape.tasks.engine.journal import Journal
from megatape.tasks.engine.model import EvaluationModel
from megatape.tasks.engine.provenance import examples_hash, software
from megatape.tasks.engine.ranks import ALONE, Ranks
from megatape.tasks.engine.task import Measure, ResultT, Task

FORMAT = 1  # of results.json


def evaluate(task: Task[Any, Any, ResultT], model: EvaluationModel) -> ResultT:
    """The results of a task, by this process alone. Raises what the task raises."""
    return task.result([prediction for batch in task.batches(model) for prediction in task.run(model, batch)])


@dataclass(frozen=True)
class Row:
    """Results of one model in a table, and in one line."""

    summary: str
    measures: list[Measure]


def evaluate_in(
    folder: Path, name: str, task: Task[Any, Any, Any], model: EvaluationModel, origin: dict[str, Any], ranks: Ranks = ALONE
) -> Row:
    """Evaluate into a folder, or resume there. Collective over all ranks.

    The results depend neither on the number of ranks nor on how often the evaluation was stopped.

    Args:
        folder: Of this evaluation, in the layout of engine/journal.py.
        name: Of the task.
        task: With its settings.
        model: That of `origin`.
        origin: The model's provenance in JSON values, recorded with the results.
        ranks: The processes, which divide the batches.

    Returns:
        The model's row of a table.

    Raises:
        ExistingPath: The folder belongs to an evaluation with another model, other settings or other examples.
        UserError: There are no examples, or an error of the task.
    """
    batches, journal = task.batches(model), Journal(folder, task.prediction)
    ends = list(accumulate(map(len, batches)))
    if not ends or not ends[-1]:
        raise UserError(f"{name}: there is not one example: give data that has some")
    settings = {
        "format": FORMAT,
        "task": name,
        "settings": vars(task),
        "examples": {"n": ends[-1], "sha256": examples_hash(batches)},
        "model": origin,
    }

    def begin() -> list[int]:
        journal.open(settings)
        return sorted(journal.read())

    answered = set(ranks.on_main(begin))
    numbered = [(range(end - len(batch), end), batch) for end, batch in zip(ends, batches, strict=True)]
    missing = [(numbers, batch) for numbers, batch in numbered if not answered.issuperset(numbers)]

    def predict() -> None:
        done = ends[-1] - sum(len(batch) for _, batch in missing)
        disable = None if ranks.is_main else True  # None: unless a person looks
        with tqdm(total=ends[-1], initial=done, desc=f"{name}, {model.name}", disable=disable) as bar:
            for numbers, batch in missing[ranks.share :: ranks.shares]:
                predictions = task.run(model, batch)
                if ranks.writes:
                    journal.add(ranks.share, numbers, predictions)
                bar.update(min(len(batch) * ranks.shares, ends[-1] - bar.n))

    ranks.together(predict)

    def finish() -> list[Any]:
        by_number = journal.read()
        predictions = [by_number[number] for number in range(ends[-1])]
        result = task.result(predictions)
        measures = [asdict(measure) for measure in result.measures]
        for file, text in task.files(predictions).items():
            write_atomically(folder / file, text.encode())
        results = {"measures": measures, "paper": task.paper(), "details": result.describe()}
        journal.complete(predictions, settings | {"versions": software()} | results)
        pictures.save(folder / f"{name}.png", result.draw, f"{model.name}\n{result.summary}")
        return [result.summary, measures]

    summary, measures = ranks.on_main(finish)
    return Row(summary, [Measure(**measure) for measure in measures])
