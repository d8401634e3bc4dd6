"""Evaluates models by tasks: every model by each of them, with a table of all models for each task."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from megatape.errors import UserError, path_errors
from megatape.files import write_atomically
from megatape.hf.loading import load_trained
from megatape.tables import markdown
from megatape.tasks.engine.model import EvaluationModel
from megatape.tasks.engine.provenance import model_hash
from megatape.tasks.engine.ranks import Ranks
from megatape.tasks.engine.runner import Row, evaluate_in
from megatape.tasks.engine.task import Task
from megatape.units import format_number


@path_errors()
def evaluate_models(
    tasks: dict[str, Task[Any, Any, Any]],
    models: Sequence[Path],
    output: Path,
    ranks: Ranks,
    trust_remote_code: bool = False,
    base: Path | None = None,
    adapter: Path | None = None,
    training_code: bool = False,
) -> str:
    """Evaluate models into output/TASK/MODEL, or resume there, and write output/TASK/results.md. Collective over all ranks.

    Args:
        tasks: By name.
        models: Folders of any kind that load_trained reads.
        output: Folder for the results.
        ranks: The processes, which divide the work.
        trust_remote_code: Let transformers run the Python files in the folders.
        base: The folder that checkpoints of trained weights only began with.
        adapter: An exported adapter to merge into each model.
        training_code: Run the model by load_tensor_parallel instead of load_trained.

    Returns:
        The summaries and tables.

    Raises:
        UserError: A model is listed twice, or an error of loading or of evaluate_in.
    """
    labels = name_models(models)
    rows: dict[str, dict[str, Row]] = {name: {} for name in tasks}
    for folder, label in zip(models, labels, strict=True):
        loading: AbstractContextManager[EvaluationModel]
        if training_code:
            from megatape.tasks.engine.tensor_parallel import (
                load_tensor_parallel,  # with DeepSpeed, which takes seconds to import
            )

            loading = load_tensor_parallel(folder, ranks.tensor, base, adapter)
        else:
            loading = load_trained(folder, trust_remote_code=trust_remote_code, base=base, adapter=adapter)
        with _full_gpu_named(folder), loading as model:
            parts = [folder] if adapter is None else [folder, adapter]
            hashes = [ranks.on_main(partial(model_hash, part)) for part in parts]
            origin = {"name": model.name, "sha256": hashes, "training_code": training_code, "tp": ranks.tensor.size}
            for name, task in tasks.items():
                rows[name][label] = evaluate_in(output / name / label, name, task, model, origin, ranks)
    texts = []
    for name, task in tasks.items():
        text = table(rows[name], task.paper())
        if ranks.is_main:
            write_atomically(output / name / "results.md", f"{text}\n".encode())
        texts.append("\n".join([*(f"{label}: {row.summary}" for label, row in rows[name].items()), "", text, ""]))
    return "\n".join([*texts, f"wrote {output}"])


@contextmanager
def _full_gpu_named(folder: Path) -> Iterator[None]:
    """Raise a UserError for torch's error of a full GPU."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"{folder} with its texts does not fit on the GPU ({str(error).splitlines()[0]}): divide it over several processes "
            "with `tp`, give shorter `lengths`, or end other programs on it"
        ) from None


def name_models(models: Sequence[Path]) -> list[str]:
    """A name for each folder: its own, after those of as many folders above it as tell it from the others.

    Raises:
        UserError: A folder is listed twice.
    """
    parts = [Path(os.path.realpath(model)).parts for model in models]  # Path.resolve raises no OSError for a loop of links
    for number, part in enumerate(parts):
        if part in parts[:number]:
            raise UserError(f"{models[number]} is given twice")
    names = []
    for part in parts:
        size = 1
        while sum(other[-size:] == part[-size:] for other in parts) > 1:
            size += 1
        names.append("_".join(part[-size:]))
    return names


def table(rows: dict[str, Row], paper: dict[str, dict[str, float]]) -> str:
    """A Markdown table with a row for each model, and below them those of the paper as far as they have its columns."""
    names = list(dict.fromkeys(measure.name for row in rows.values() for measure in row.measures))
    cells = []
    for label, row in rows.items():
        by_name = {measure.name: _cell(measure.value, measure.error) for measure in row.measures}
        cells.append([label, *(by_name.get(name, "") for name in names)])
    for label, values in paper.items():
        if any(name in values for name in names):
            cells.append([f"paper: {label}", *(_cell(values[name], None) if name in values else "" for name in names)])
    return markdown(["model", *names], cells)


def _cell(value: float, error: float | None) -> str:
    return format_number(value) + ("" if error is None else f" ± {format_number(error, 2)}")
