"""Runs an evaluation task: in memory, or in a folder, on several ranks, going on where it was stopped."""

from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from tqdm import tqdm

from megatape.errors import UserError
from megatape.files import write_atomically
from megatape.tasks.identity import examples_hash, software
from megatape.tasks.journal import Journal
from megatape.tasks.model import EvaluationModel
from megatape.tasks.ranks import ALONE, Ranks
from megatape.tasks.task import Found, Measure, Task

FORMAT = 1  # of results.json


def evaluate(task: Task[Any, Found], model: EvaluationModel) -> Found:
    """The results of a task, by this process alone. Raises what the task raises."""
    return task.result(model, [sample for batch in task.batches(model) for sample in task.run(model, batch)])


@dataclass(frozen=True)
class Row:
    """Results of one model, as far as a table has them. summary: one line."""

    summary: str
    measures: list[Measure]


def evaluate_in(
    folder: Path, name: str, task: Task[Any, Any], model: EvaluationModel, origin: dict[str, Any], ranks: Ranks = ALONE
) -> Row:
    """Evaluate into a folder, or go on there; the results do not depend on how often it was stopped, or on the number of ranks.

    name: of the task. origin: what the model is, in JSON values; the folder must have been begun with the same. Collective over
    all ranks. Raises ExistingPath if it was not, and what the task raises.
    """
    journal, batches = Journal(folder), task.batches(model)
    num_examples = sum(map(len, batches))
    if not num_examples:
        raise UserError(f"{name}: there is not one example: give data that has some")
    settings = {
        "format": FORMAT,
        "task": name,
        "settings": vars(task),
        "examples": {"n": num_examples, "sha256": examples_hash(batches)},
        "model": origin,
    }

    def begin() -> list[int]:
        journal.open(settings)
        return sorted(journal.read())

    known = set(ranks.on_main(begin))
    ends = accumulate(map(len, batches))
    missing = [
        (numbers, batch)
        for end, batch in zip(ends, batches, strict=True)
        if not known.issuperset(numbers := range(end - len(batch), end))
    ]

    def answer() -> None:
        begun = num_examples - sum(len(batch) for _, batch in missing)
        disable = None if ranks.is_main else True  # None: unless a person looks
        with tqdm(total=num_examples, initial=begun, desc=f"{name}, {model.name}", disable=disable) as bar:
            for numbers, batch in missing[ranks.share :: ranks.shares]:
                samples = task.run(model, batch)
                if ranks.writes:
                    numbered = zip(numbers, samples, strict=True)
                    journal.add(ranks.share, [{"example": number} | sample for number, sample in numbered])
                bar.update(min(len(batch) * ranks.shares, num_examples - bar.n))

    ranks.together(answer)

    def finish() -> list[Any]:
        found = journal.read()
        samples = [found[number] for number in range(num_examples)]
        result = task.result(model, samples)
        measures = [asdict(measure) for measure in result.measures]
        found_out = {"measures": measures, "paper": task.paper(), "details": result.describe()}
        for file, text in task.files(samples).items():
            write_atomically(folder / file, text.encode())
        journal.complete(samples, settings | {"versions": software()} | found_out)
        title = f"{model.name}\n{result.summary}".replace("$", r"\$")  # else matplotlib reads formulas
        result.draw(title, folder / f"{name}.png")
        return [result.summary, measures]

    summary, measures = ranks.on_main(finish)
    return Row(summary, [Measure(**measure) for measure in measures])
