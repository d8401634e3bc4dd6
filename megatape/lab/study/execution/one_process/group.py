"""Runs of a study that share a process."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from megatape.config import save_config
from megatape.lab.study.execution.children import Children, Environment
from megatape.lab.study.execution.divergence import remove_mark
from megatape.lab.study.execution.one_process.unsupported import unsupported_reason
from megatape.lab.study.execution.one_process.worker import DISAGREES, Assignment
from megatape.lab.study.execution.run import Run, RunsFailed, last_error
from megatape.utils.files.files import read_regular
from megatape.utils.processes.python_process import python_command
from megatape.utils.values.rounding import divide_up

# Maximum number of runs in a group. More runs would save little, as starting a process takes seconds.
MAX_RUNS = 8
# Resolved configuration of a run in its run directory. `pretrain` writes config.json itself.
CONFIG = "one_process.json"
WORKER = "megatape.lab.study.execution.one_process.worker"


@dataclass(frozen=True)
class Finished:
    """A run after its training and measuring.

    Attributes:
        run: The run.
        error: Error message, or None.
        warning: Warning for the user, or None.
    """

    run: Run[Any]
    error: str | None = None
    warning: str | None = None


@dataclass(frozen=True)
class RunGroup:
    """Runs of a study that share a process.

    Attributes:
        runs: Supported runs, see `reason_against`.
    """

    runs: tuple[Run[Any], ...]

    def finish(self, children: Children, environments: SimpleQueue[Environment]) -> list[Finished]:
        """Train and measure the models, skipping finished runs and those that diverged earlier.

        A run that disagrees with `pretrain` is trained by it.

        Args:
            children: Runs the commands.
            environments: Free environments. The call waits for one and puts it back afterwards.
        """
        missing = [run for run in self.runs if run.missing() and run.divergence() is None]
        status = 0
        if missing:
            environment = environments.get()
            try:
                words = [_assign(run) for run in missing]
                status = children.run(python_command(WORKER, *words), environment, missing[0].folder.log)
            finally:
                environments.put(environment)
        return [_check(run, status, children, environments) for run in self.runs]


def finish_alone(run: Run[Any], children: Children, environments: SimpleQueue[Environment]) -> list[Finished]:
    """Train a model with `pretrain` and measure it. Arguments as in `RunGroup.finish`."""
    try:
        run.finish(children, environments)
    except RunsFailed as error:
        return [Finished(run, str(error))]
    return [Finished(run)]


def reason_against(run: Run[Any]) -> str | None:
    """Return the reason why a run needs processes of its own, or None."""
    if run.train is None or run.evaluations or any(measurement.of_model is None for measurement in run.measurements):
        return "its measurements read a checkpoint"
    if run.folder.list_checkpoints():
        return "it has a checkpoint to continue from"
    return unsupported_reason(run.config)


def make_groups(runs: Sequence[Run[Any]], jobs: int, train_together: bool) -> list[RunGroup]:
    """Distribute runs over groups, at least one for each parallel job if there are enough runs.

    Within a group, runs with the same data follow each other, because a process reads data and tests once.

    Args:
        runs: Supported runs.
        jobs: Number of parallel processes.
        train_together: Whether a process trains runs with the same model and data together, as on a GPU. Then they share
            groups. Otherwise groups keep the order of the runs, so that every row of a table has results early.
    """
    ordered = list(runs)
    if train_together:
        ordered.sort(key=_data_and_encoding)
    size = min(MAX_RUNS, divide_up(len(runs), jobs))
    size = max(1, size)
    groups = []
    for first in range(0, len(ordered), size):
        runs_of_group = sorted(ordered[first : first + size], key=_data_and_encoding)
        groups.append(RunGroup(tuple(runs_of_group)))
    return groups


def _data_and_encoding(run: Run[Any]) -> tuple[str, str]:
    """Return the key by which the runs of a group are sorted."""
    return run.config.data.path, run.config.model.encoding


def _assign(run: Run[Any]) -> str:
    """Prepare a run directory, and return the word for the worker's command line."""
    directory = run.folder.directory
    directory.mkdir(parents=True, exist_ok=True)
    (directory / DISAGREES).unlink(missing_ok=True)
    remove_mark(run.folder)
    config = directory / CONFIG
    save_config(run.config, config)
    (measurement,) = run.measurements
    assert measurement.of_model is not None
    assignment = Assignment(
        directory=str(directory),
        config=str(config),
        result=str(measurement.path),
        function=f"{measurement.of_model.__module__}:{measurement.of_model.__name__}",
        # The first argument is the run directory.
        arguments=list(measurement.arguments[1:]),
    )
    return assignment.as_word()


def _check(run: Run[Any], status: int, children: Children, environments: SimpleQueue[Environment]) -> Finished:
    """Return how a run has ended, after training it with `pretrain` if it disagrees."""
    if not run.missing():
        return Finished(run)
    message = run.divergence()
    if message is not None:
        return Finished(run, f"{run.name}: {message}")
    reason = _read_reason(run.folder.directory / DISAGREES)
    if reason is not None:
        warning = f"{run.name}: trained by processes of its own, because in one process {reason}"
        (alone,) = finish_alone(run, children, environments)
        return Finished(run, alone.error, warning)
    log = run.folder.log
    return Finished(run, f"{run.name}: training exited with status {status}; {log} says: {last_error(log)}")


def _read_reason(path: Path) -> str | None:
    if not path.exists():
        return None
    return read_regular(path).decode(errors="replace")
