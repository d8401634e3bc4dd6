"""Process that trains and measures the runs of a group. It calls `main` with the JSON of an Assignment for each run."""

import logging
import traceback
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Self

import torch
from pydantic import JsonValue, TypeAdapter

from megatape.config import load_config
from megatape.data.training.run_data import open_data
from megatape.errors import TrainingDiverged, UserError
from megatape.lab.study.execution.divergence import mark_diverged
from megatape.lab.study.execution.one_process.agreement import disagreement
from megatape.lab.study.execution.one_process.learner import Learner
from megatape.lab.study.execution.one_process.step_graph import step_graph
from megatape.lab.study.execution.one_process.training import Outcome, TrainedModel, train
from megatape.lab.study.results.result import RunResult
from megatape.run_folder import RunFolder
from megatape.utils.files.json_files import json_content

LOG = logging.getLogger(__name__)

# File in a run directory that says why the run must be trained by `pretrain`.
DISAGREES = "disagrees.txt"


@dataclass(frozen=True)
class Assignment:
    """A run to train and measure.

    Attributes:
        directory: Run directory.
        config: File with the resolved configuration.
        result: Result file.
        function: Function that measures the TrainedModel, MODULE:FUNCTION.
        arguments: Further arguments for the function.
    """

    directory: str
    config: str
    result: str
    function: str
    arguments: list[JsonValue]

    def as_word(self) -> str:
        """Return the assignment as a word of a command line."""
        return json_content(asdict(self), self.directory).decode()

    @classmethod
    def parse(cls, word: str) -> Self:
        """Return the assignment in a word of a command line."""
        return TypeAdapter(cls).validate_json(word)

    @property
    def folder(self) -> RunFolder:
        """Run directory."""
        return RunFolder(Path(self.directory))

    def log(self, line: str) -> None:
        """Append a line to the log of the run."""
        with self.folder.log.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def measure(self, trained: TrainedModel) -> RunResult:
        """Measure the model, and write the result."""
        module, _, name = self.function.partition(":")
        measure = getattr(import_module(module), name)
        result: RunResult = measure(trained, *self.arguments)
        result.write(Path(self.result))
        return result


def main(words: list[str]) -> int:
    """Train and measure runs, and return the exit status. A run that fails does not stop the others.

    On a GPU, runs with the same model and data are trained together, otherwise one after another.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assignments = [Assignment.parse(word) for word in words]
    errors = _Errors()
    for together in _split(assignments, device):
        with errors.logged_by(*together):
            _finish(together, device, errors)
    return int(errors.occurred)


class _Errors:
    """Errors of runs, which do not stop the other runs.

    Attributes:
        occurred: Whether there was an error.
    """

    def __init__(self) -> None:
        self.occurred = False

    @contextmanager
    def logged_by(self, *assignments: Assignment) -> Iterator[None]:
        """Write an error in the block to the logs of these runs, instead of raising it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (the other runs continue)
            self.occurred = True
            for assignment in assignments:
                assignment.log(_describe(error))


def _describe(error: Exception) -> str:
    """Return the log's text about an error: one line, or a traceback ending with the line."""
    if isinstance(error, UserError):
        return f"error: {error}"
    return f"{traceback.format_exc()}error: {type(error).__name__}: {error}"


def _split(assignments: list[Assignment], device: torch.device) -> list[list[Assignment]]:
    """Return the runs to train together."""
    if device.type == "cpu":
        # Measured: several models in turns take as long as one after another, and results come later.
        return [[assignment] for assignment in assignments]
    alike: dict[str, list[Assignment]] = defaultdict(list)
    for assignment in assignments:
        config = load_config(assignment.config)
        shape = config.model.model_dump_json() + config.data.model_dump_json() + str(config.training.steps)
        alike[shape].append(assignment)
    return list(alike.values())


def _finish(assignments: list[Assignment], device: torch.device, errors: _Errors) -> None:
    """Train and measure runs together. An error while training stops all of them, any other error only its run."""
    learners = []
    by_learner: dict[int, Assignment] = {}
    for assignment in assignments:
        with errors.logged_by(assignment):
            learner = _start(assignment, device)
            if learner is not None:
                learners.append(learner)
                by_learner[id(learner)] = assignment
    if not learners:
        return

    def report(learner: Learner, step: int) -> None:
        assignment = by_learner[id(learner)]
        assignment.log(f"step {step}/{learner.config.training.steps}  loss {float(learner.loss):.4f}")

    outcomes = train(learners, step_graph(device), report)
    for learner, outcome in zip(learners, outcomes, strict=True):
        assignment = by_learner[id(learner)]
        with errors.logged_by(assignment):
            _conclude(assignment, learner, outcome)


def _conclude(assignment: Assignment, learner: Learner, outcome: Outcome) -> None:
    """Measure a trained model, or record that it diverged."""
    if isinstance(outcome, TrainingDiverged):
        error = f"error: {outcome}"
        assignment.log(error)
        mark_diverged(assignment.folder, learner.config, error)
        return
    result = assignment.measure(outcome)
    assignment.log(result.summary)


def _start(assignment: Assignment, device: torch.device) -> Learner | None:
    """Return the learner of a run, or None after noting that it must be trained by `pretrain`."""
    config = load_config(assignment.config)
    data = open_data(config.data, config.training, config.evaluation, config.model.vocab_size)
    learner = Learner(config, data, device)
    reason = disagreement(learner)
    if reason is None:
        assignment.log(f"trained by engine one_process on {device.type}")
        return learner
    assignment.log(f"warning: {reason}")
    (assignment.folder.directory / DISAGREES).write_text(reason, encoding="utf-8")
    return None
