"""Runs an evaluation task: in memory, or in a folder, on several ranks, from where it was stopped.

The folder of an evaluation, from which a stopped one resumes:

settings.json      model, task, settings and examples, written first: the folder belongs to this evaluation only
samples-0.jsonl    the predictions of each rank, a line per example, while the evaluation runs
samples.jsonl      the predictions of all ranks in the order of the examples, once it is complete
results.json       the settings and all results, written last
TASK.png           a picture of them; TASK-dark.png the same on a dark ground

Every line of predictions has the hash of its other fields. One that was altered, not written whole, or written by a version
whose predictions had other fields is computed again.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson
import torch
from tqdm import tqdm

from megatape.checkpoint.manifest import MANIFEST, describe
from megatape.distributed.exchange import on_all, on_main
from megatape.distributed.launchers import discover
from megatape.distributed.mesh import SINGLE, Axis, make_mesh
from megatape.distributed.topology import SINGLE_PROCESS, Topology
from megatape.errors import ExistingPath, MissingPath, UserError, path_error, path_errors
from megatape.hf.loading import load_trained
from megatape.lab import pictures
from megatape.lab.tasks.engine.outline import model_name, read_outline
from megatape.lab.tasks.engine.task import EvaluationModel, Measure, ModelOutline, ResultT, Task
from megatape.utils.files import (
    append_lines,
    as_type,
    json_content,
    parse_json,
    read_json,
    read_lines,
    real_paths,
    write_atomically,
)
from megatape.utils.options import Line
from megatape.utils.software import source_hash, versions
from megatape.utils.tables import markdown
from megatape.utils.units import format_number, plural

FORMAT = 1  # of results.json
HASH = "sha256"  # of a line of predictions
FILES = ("*.json", "*.safetensors", "*.model")  # of a folder without a manifest, those that determine a model's answers
Prediction = TypeVar("Prediction")


@dataclass(frozen=True)
class Ranks:
    """The processes that divide the batches of an evaluation, by default one alone.

    Attributes:
        topology: Of all processes.
        share: Number of this process's share of the batches.
        shares: Number of shares.
        tensor: The processes that divide the model, and have the same share of the batches.
    """

    topology: Topology = SINGLE_PROCESS
    share: int = 0
    shares: int = 1
    tensor: Axis = SINGLE


ALONE = Ranks()


@contextmanager
def launched_ranks(num_tensor: int = 1) -> Iterator[Ranks]:
    """The processes that a launcher started, of which `num_tensor` each divide a model. Collective over them.

    Raises:
        UserError: The launcher's variables make no sense, or the number of processes is no multiple of `num_tensor`.
    """
    topology = discover()
    if num_tensor < 1 or topology.world_size % num_tensor:
        raise UserError(
            f"tp {num_tensor}: the launcher started {plural(topology.world_size, 'process', 'processes')}: start a multiple, "
            f"such as deepspeed --num_accelerators {max(1, num_tensor)} launch/evaluate.py ..."
        )
    if topology.world_size == 1:
        yield ALONE
        return
    from megatape.zero.distributed import initialize_distributed, shut_down  # DeepSpeed takes seconds to import

    initialize_distributed(topology)
    try:
        mesh = make_mesh(topology, {"tensor": num_tensor})
        yield Ranks(topology, mesh["batch"].rank, mesh["batch"].size, mesh["tensor"])
    finally:
        shut_down()


def evaluate_models(
    tasks: dict[str, Task[Any, Any, Any]],
    models: Sequence[Path],
    output: Path,
    ranks: Ranks,
    trust_remote_code: bool = False,
    base: Path | None = None,
    adapter: Path | None = None,
    training_code: bool = False,
) -> Iterator[str]:
    """Evaluate models into output/TASK/MODEL, or resume there, and write output/TASK/results.md. Collective over all ranks.

    The examples of all tasks for all models are made, and all folders are checked, before the first model is loaded.

    Args:
        tasks: By name.
        models: Folders of any kind that load_trained reads.
        output: Folder for the results.
        ranks: The processes, which divide the work.
        trust_remote_code: Let transformers run the Python files in the folders.
        base: The folder that checkpoints of trained weights only began with.
        adapter: An exported adapter to merge into each model.
        training_code: Run the model by load_tensor_parallel instead of load_trained.

    Yields:
        The numbers of examples, the summary of each evaluation as soon as its results are written, and the tables.

    Raises:
        UserError: A model is listed twice, or an error of loading or of an evaluation.
    """
    labels = name_models(models)
    rows: dict[str, dict[str, list[Measure]]] = {name: {} for name in tasks}
    evaluations: dict[str, list[Evaluation]] = {}
    with path_errors():

        def prepare() -> None:
            for folder, label in zip(models, labels, strict=True):
                model = read_outline(folder, base, adapter, trust_remote_code, ranks.share, ranks.shares)
                evaluations[label] = [
                    Evaluation(output / name / label, name, task, model, ranks) for name, task in tasks.items()
                ]

        on_all(prepare, ranks.topology)
        for folder, label in zip(models, labels, strict=True):
            hashes = [on_main(partial(model_hash, part), ranks.topology) for part in (folder, adapter) if part is not None]
            name = model_name(folder, adapter)
            for evaluation in evaluations[label]:
                evaluation.open({"name": name, "sha256": hashes, "training_code": training_code, "tp": ranks.tensor.size})
        yield "\n".join(f"examples for {label}: {', '.join(map(str, each))}" for label, each in evaluations.items())
        for folder, label in zip(models, labels, strict=True):
            loading: AbstractContextManager[EvaluationModel]
            if training_code:
                # With DeepSpeed, which takes seconds to import.
                from megatape.lab.tasks.engine.tensor_parallel import load_tensor_parallel

                loading = load_tensor_parallel(folder, ranks.tensor, base, adapter)
            else:
                loading = load_trained(folder, trust_remote_code=trust_remote_code, base=base, adapter=adapter)
            with _full_gpu_named(folder), loading as model:
                for evaluation in evaluations.pop(label):
                    name = evaluation.name
                    summary, rows[name][label] = evaluation.run(model)
                    if ranks.topology.is_main:
                        text = table(rows[name], tasks[name].paper())
                        write_atomically(output / name / "results.md", f"{text}\n".encode())
                    yield Line(f"{label}: {summary}")
    yield "\n\n".join([*(table(rows[name], task.paper()) for name, task in tasks.items()), f"wrote {output}"])


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


def evaluate(task: Task[Any, Any, ResultT], model: EvaluationModel) -> ResultT:
    """The results of a task, by this process alone. Raises what the task raises."""
    return task.result([prediction for batch in task.batches(model) for prediction in task.run(model, batch)])


class Evaluation:
    """The evaluation of one model by one task in a folder.

    Its examples are made first, so that all input of several evaluations is known to be good before the first of them runs.
    """

    def __init__(self, folder: Path, name: str, task: Task[Any, Any, Any], model: ModelOutline, ranks: Ranks = ALONE) -> None:
        """Make the examples.

        Args:
            folder: Of this evaluation, in the layout above.
            name: Of the task.
            task: With its settings.
            model: Its outline.
            ranks: The processes, which divide the batches.

        Raises:
            UserError: There are no examples, or an error of the task, which it names.
        """
        self.folder = folder
        self.name = name
        self.task = task
        self.ranks = ranks
        try:
            with path_errors():
                self.batches = task.batches(model)
            self.ends = list(accumulate(map(len, self.batches)))
            if not self.ends or not self.ends[-1]:
                raise UserError("there is not one example: give data that has some")
        except UserError as error:
            raise _named(name, task, error) from error
        self.journal = Journal(folder, task.prediction)

    def __str__(self) -> str:
        """The number of examples."""
        return f"{self.name} {self.ends[-1]:,} in {len(self.batches):,} batches"

    def open(self, origin: dict[str, Any]) -> None:
        """Create the folder, or check that it belongs to this evaluation. Collective over all ranks.

        Args:
            origin: The model's provenance in JSON values, recorded with the results.

        Raises:
            ExistingPath: It belongs to an evaluation with another model, other settings or other examples.
        """
        self.settings = {
            "format": FORMAT,
            "task": self.name,
            "settings": vars(self.task),
            "examples": {"n": self.ends[-1], "sha256": examples_hash(self.batches)},
            "model": origin,
        }
        on_main(partial(self.journal.open, self.settings), self.ranks.topology)

    def run(self, model: EvaluationModel) -> tuple[str, list[Measure]]:
        """Predict what the opened folder lacks, and write the results. Collective over all ranks.

        The results depend neither on the number of ranks nor on how often the evaluation was stopped.

        Args:
            model: The one that the outline is of.

        Returns:
            The results in one line, and the numbers of the model's row in a table.

        Raises:
            UserError: An error of the task.
        """
        ranks = self.ranks
        end = self.ends[-1]
        answered = set(on_main(lambda: sorted(self.journal.read()), ranks.topology))
        numbered = [(range(end - len(batch), end), batch) for end, batch in zip(self.ends, self.batches, strict=True)]
        missing = [(numbers, batch) for numbers, batch in numbered if not answered.issuperset(numbers)]

        def predict() -> None:
            done = end - sum(len(batch) for _, batch in missing)
            disable = None if ranks.topology.is_main else True  # None: unless a person looks
            with tqdm(total=end, initial=done, desc=f"{self.name}, {model.name}", disable=disable) as bar:
                for numbers, batch in missing[ranks.share :: ranks.shares]:
                    predictions = self.task.run(model, batch)
                    if ranks.tensor.rank == 0:  # all of its axis have the same predictions
                        self.journal.add(ranks.share, numbers, predictions)
                    bar.update(min(len(batch) * ranks.shares, end - bar.n))

        on_all(predict, ranks.topology)
        summary, measures = on_main(partial(self._finish, model), ranks.topology)
        return summary, [Measure(**measure) for measure in measures]

    def _finish(self, model: EvaluationModel) -> list[Any]:
        """Write the results; returns their summary and measures in JSON values."""
        by_number = self.journal.read()
        predictions = [by_number[number] for number in range(self.ends[-1])]
        result = self.task.result(predictions)
        measures = [asdict(measure) for measure in result.measures]
        for file, text in self.task.files(predictions).items():
            write_atomically(self.folder / file, text.encode())
        results = {"measures": measures, "paper": self.task.paper(), "details": result.describe()}
        self.journal.complete(predictions, self.settings | {"versions": software()} | results)
        pictures.save(self.folder / f"{self.name}.png", result.draw, f"{model.name}\n{result.summary}")
        return [result.summary, measures]


def _named(name: str, task: Task[Any, Any, Any], error: UserError) -> UserError:
    """The error with the name of the task, which its commands would show a flag for at the beginning only."""
    field, rest = re.match(r"(\w*)(.*)", str(error), re.DOTALL).groups()  # type: ignore[union-attr]
    text = f"task {name}: `{field}`{rest}" if field in vars(task) else f"task {name}: {error}"
    return path_error(error, text) if isinstance(error, OSError) else type(error)(text)


class Journal(Generic[Prediction]):
    """The predictions of one evaluation in its folder, which several ranks share."""

    def __init__(self, folder: Path, kind: type[Prediction]) -> None:
        self.folder = folder
        self._kind = kind
        self._samples = folder / "samples.jsonl"

    def open(self, settings: dict[str, Any]) -> None:
        """Create the folder, or check that it belongs to an evaluation with these settings. For one process.

        Raises:
            ExistingPath: It belongs to another evaluation or to none. The message names the first setting that differs.
        """
        path = self.folder / "settings.json"
        text = json_content(settings, str(path), indent=2, default=str)
        if self.folder.exists() and any(self.folder.iterdir()):
            try:
                known = read_json(path)
            except (OSError, ValueError):
                raise ExistingPath(
                    f"{self.folder} exists, but {path.name} there describes no evaluation: choose another `output`"
                ) from None
            difference = _difference(known, parse_json(text))
            if difference and any(self.folder.glob("samples*.jsonl")):  # without any, it only failed to begin
                raise ExistingPath(
                    f"{self.folder} holds an evaluation with other settings: {difference}: choose another `output`, or "
                    "remove it to start again"
                )
            if difference is None:
                return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text + b"\n")

    def read(self) -> dict[int, Prediction]:
        """The valid predictions of all ranks, by number of the example."""
        predictions: dict[int, Prediction] = {}
        for path in [self._samples, *sorted(self.folder.glob("samples-*.jsonl"))]:
            for _, line in read_lines(path):
                if line.pop(HASH, None) == _hash(line) and type(line.get("example")) is int:
                    with suppress(UserError):
                        predictions[line["example"]] = as_type(line, self._kind)
        return predictions

    def add(self, rank: int, numbers: Iterable[int], predictions: Iterable[Prediction]) -> None:
        """Append to the predictions of this rank. numbers: of their examples."""
        append_lines(self.folder / f"samples-{rank}.jsonl", map(_line, numbers, predictions))

    def complete(self, predictions: Iterable[Prediction], results: dict[str, Any]) -> None:
        """Write the results, and the predictions of all ranks in one file. For one process, when no rank adds any more."""
        lines = (json.dumps(_line(number, each)) + "\n" for number, each in enumerate(predictions))
        write_atomically(self._samples, "".join(lines).encode())
        for path in self.folder.glob("samples-*.jsonl"):
            path.unlink()
        path = self.folder / "results.json"
        write_atomically(path, json_content(results, str(path), indent=2, default=str) + b"\n")


def _line(number: int, prediction: Any) -> dict[str, Any]:
    line = {"example": number} | vars(prediction)
    return line | {HASH: _hash(line)}


def _hash(line: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(line).encode()).hexdigest()


def _difference(there: Any, here: Any, name: str = "") -> str | None:
    """The first value in which two JSON values differ, in words; None if there is none."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in here | there:
            if difference := _difference(there.get(key), here.get(key), f"{name}.{key}".lstrip(".")):
                return difference
        return None
    return None if there == here else f"{name} is {json.dumps(there)} there and {json.dumps(here)} here"


def model_hash(folder: Path) -> str:
    """The sha256 of a model's folder.

    It is that of a checkpoint's manifest, which has those of its files, or of the names and hashes of the files with
    configuration, weights and tokenizer.

    Raises:
        MissingPath: There are none.
    """
    manifest = folder / MANIFEST
    paths = [manifest] if manifest.is_file() else sorted(path for pattern in FILES for path in folder.glob(pattern))
    if not paths:
        raise MissingPath(f"{folder}: no such model: give a checkpoint, or a folder that `megatape export` wrote")
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name} {describe(path)['sha256']}\n".encode())
    return digest.hexdigest()


def examples_hash(batches: list[list[Any]]) -> str:
    """The sha256 of all examples as JSON, so of the data that they were made from; without fields that are not compared."""
    digest = hashlib.sha256()
    for batch in batches:
        options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS
        digest.update(orjson.dumps(batch, default=_plain, option=options))
    return digest.hexdigest()


def software() -> dict[str, str]:
    """Versions of the software that computes the results; of MegaTAPE the hash of its code."""
    return {"megatape": source_hash(), "python/torch/deepspeed": versions(), "transformers": version("transformers")}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
    return str(value)


def name_models(models: Sequence[Path]) -> list[str]:
    """A name for each folder: its own, after those of as many folders above it as tell it from the others.

    Raises:
        UserError: A folder is listed twice, or two have one name.
    """
    parts = [path.parts[1:] for path in real_paths(models)]  # without the root, which is no name
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


def table(rows: dict[str, list[Measure]], paper: dict[str, dict[str, float]]) -> str:
    """A Markdown table with a row for each model, and below them those of the paper as far as they have its columns."""
    names = list(dict.fromkeys(measure.name for row in rows.values() for measure in row))
    cells = []
    for label, row in rows.items():
        by_name = {measure.name: _cell(measure) for measure in row}
        cells.append([label, *(by_name.get(name, "") for name in names)])
    for label, values in paper.items():
        if any(name in values for name in names):
            cells.append([f"paper: {label}", *(format_number(values[name]) if name in values else "" for name in names)])
    return markdown(["model", *names], cells)


def _cell(measure: Measure) -> str:
    """The value with its interval, or else with its standard error."""
    text = format_number(measure.value)
    if measure.interval is not None:
        low, high = (format_number(end, 3) for end in measure.interval)
        return f"{text} ({low} to {high})"
    return text if measure.error is None else f"{text} ± {format_number(measure.error, 2)}"
