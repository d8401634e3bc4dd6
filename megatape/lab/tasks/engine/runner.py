"""Runs evaluation tasks: one model in memory, or several models into a folder, resumable and on several ranks."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from megatape.distributed.values.exchange import on_all, on_main
from megatape.errors import UserError, flag, path_errors
from megatape.hf.loading.load import load_trained
from megatape.lab.names import real_paths
from megatape.lab.tasks.engine.evaluation import Evaluation, TaskExamples
from megatape.lab.tasks.engine.loading import DEFAULT_LOADING, LoadingOptions
from megatape.lab.tasks.engine.model import EvaluationModel
from megatape.lab.tasks.engine.outline import read_outline
from megatape.lab.tasks.engine.provenance import model_hash
from megatape.lab.tasks.engine.ranks import EvaluationRanks
from megatape.lab.tasks.engine.record import ModelOrigin
from megatape.lab.tasks.engine.result import Measure
from megatape.lab.tasks.engine.table import table
from megatape.lab.tasks.engine.task import ScoresT, Task
from megatape.utils.files.atomic import write_atomically
from megatape.utils.text.paragraphs import Line, Show

MeasuresByModel = dict[str, list[Measure]]


def evaluate(task: Task[Any, Any, ScoresT], model: EvaluationModel) -> ScoresT:
    """Evaluate a model in memory, in this process alone.

    Args:
        task: Task with its options.
        model: The loaded model.

    Returns:
        Results of the task.

    Raises:
        UserError: The task's options or data do not suit the model.
    """
    predictions = []
    for batch in task.batches(model):
        predictions += task.run(model, batch)
    return task.result(predictions)


def evaluate_models(
    tasks: dict[str, Task[Any, Any, Any]],
    models: Sequence[Path],
    output: Path,
    ranks: EvaluationRanks,
    show: Show,
    loading: LoadingOptions = DEFAULT_LOADING,
) -> dict[str, MeasuresByModel]:
    """Evaluate models into output/TASK/MODEL, resuming there, and write output/TASK/results.md. Collective.

    All examples are made and all folders checked before loading the first model.

    Args:
        tasks: Tasks by name.
        models: Model folders, of any kind that `load_trained` reads.
        output: Folder for the results.
        ranks: Processes sharing the work.
        show: Called on the main rank with the numbers of examples, then with the summary of each finished evaluation.
        loading: Options for loading the models.

    Returns:
        Task name -> model name -> measures, on every rank.

    Raises:
        UserError: A model is listed twice, or loading or an evaluation failed.
    """
    is_main = ranks.topology.is_main
    folders = dict(zip(name_models(models), models, strict=True))
    measures: dict[str, MeasuresByModel] = {name: {} for name in tasks}
    with path_errors():
        evaluations = _open_evaluations(tasks, folders, output, ranks, loading)
        if is_main:
            show("\n".join(_count_examples(label, each) for label, each in evaluations.items()))

        for label, folder in folders.items():
            with _report_full_gpu(folder), _load(folder, loading, ranks) as model:
                # Popping frees the examples of finished models.
                for evaluation in evaluations.pop(label):
                    name = evaluation.examples.name
                    outcome = evaluation.run(model)
                    measures[name][label] = outcome.measures
                    if is_main:
                        text = table(measures[name], tasks[name].paper())
                        write_atomically(output / name / "results.md", f"{text}\n".encode())
                        show(Line(f"{label}: {outcome.summary}"))
    return measures


def name_models(models: Sequence[Path]) -> list[str]:
    """Name each model after its folder, including as many parent folders as needed to make the names distinct.

    Args:
        models: Model folders.

    Returns:
        Name of each model, in order.

    Raises:
        UserError: A folder is listed twice, or two folders would have the same name.
    """
    # The root is not part of a name.
    parts = [path.parts[1:] for path in real_paths(models)]
    names = []
    for part in parts:
        size = 1
        while sum(other[-size:] == part[-size:] for other in parts) > 1:
            size += 1
        names.append("_".join(part[-size:]))
    for name, model in zip(names, models, strict=True):
        if names.count(name) > 1:
            raise UserError(f"the results of {model} and of another model would both be in {name}: rename one of the folders")
    return names


def _open_evaluations(
    tasks: dict[str, Task[Any, Any, Any]],
    folders: dict[str, Path],
    output: Path,
    ranks: EvaluationRanks,
    loading: LoadingOptions,
) -> dict[str, list[Evaluation]]:
    """Make the examples of all evaluations, then open their folders. Collective.

    Returns:
        Model label -> an evaluation for each task.
    """
    examples: dict[str, list[TaskExamples]] = {}

    def make_examples() -> None:
        for label, folder in folders.items():
            outline = read_outline(folder, loading, ranks.share, ranks.num_shares)
            examples[label] = [TaskExamples(name, task, outline) for name, task in tasks.items()]

    on_all(make_examples, ranks.topology)
    evaluations: dict[str, list[Evaluation]] = {}
    for label, folder in folders.items():
        origin = _origin(folder, loading, ranks)
        evaluations[label] = [Evaluation.open(output / each.name / label, each, origin, ranks) for each in examples[label]]
    return evaluations


def _origin(folder: Path, loading: LoadingOptions, ranks: EvaluationRanks) -> ModelOrigin:
    """Return the provenance of a model. Collective."""
    hashes = [on_main(partial(model_hash, folder), ranks.topology)]
    if loading.adapter is not None:
        hashes.append(on_main(partial(model_hash, loading.adapter), ranks.topology))
    return ModelOrigin(loading.name_of(folder), hashes, loading.training_code, ranks.tensor.size)


def _count_examples(label: str, evaluations: list[Evaluation]) -> str:
    counts = ", ".join(str(evaluation.examples) for evaluation in evaluations)
    return f"examples for {label}: {counts}"


def _load(folder: Path, loading: LoadingOptions, ranks: EvaluationRanks) -> AbstractContextManager[EvaluationModel]:
    """Load a model in a context, sharded across ranks if it runs the training code."""
    if loading.training_code:
        # Importing it takes seconds, because it imports DeepSpeed.
        from megatape.lab.tasks.engine.tensor_parallel import load_tensor_parallel

        return load_tensor_parallel(folder, ranks.tensor, loading.base, loading.adapter)
    return load_trained(folder, trust_remote_code=loading.trust_remote_code, base=loading.base, adapter=loading.adapter)


@contextmanager
def _report_full_gpu(folder: Path) -> Iterator[None]:
    """Turn torch's error about a full GPU into a UserError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        first_line = str(error).splitlines()[0]
        raise UserError(
            f"{folder} with its texts does not fit on the GPU ({first_line}): divide it over several processes with "
            f"{flag('tp')}, give shorter {flag('lengths')}, or end other programs on it"
        ) from None
