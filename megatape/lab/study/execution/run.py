"""Run of a study: trains a model with `pretrain` and then measures it, in separate processes.

Finished steps are skipped, and an interrupted training resumes from its last checkpoint.
"""

from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, TypeVar

from megatape.checkpoint.load.compatibility import check_same_data, check_same_settings
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import Config, differences, save_config
from megatape.errors import ExitStatus, UserError, flag
from megatape.lab.study.execution.children import Children, Environment
from megatape.lab.study.execution.divergence import divergence, mark_diverged, remove_mark
from megatape.lab.study.execution.measurement import Measurement
from megatape.lab.study.execution.task_evaluation import TaskEvaluation
from megatape.lab.study.results.result import RunResult
from megatape.run_folder import RunFolder
from megatape.utils.files.files import read_regular


class RunsFailed(ChildProcessError):
    """Some runs of a study failed; the others are complete."""


ResultT = TypeVar("ResultT", bound=RunResult)


@dataclass(frozen=True)
class Run(Generic[ResultT]):
    """A model of a study, to train and to measure.

    Attributes:
        name: Name in messages.
        config: Configuration that `pretrain` resolves from its command.
        train: Command training the model to its last step, from the start or from a checkpoint. None if only measured.
        measurements: Measurements of the trained model.
        result: Type of their results.
        evaluations: Evaluations of the trained model by tasks.
    """

    name: str
    config: Config
    train: list[str] | None
    measurements: tuple[Measurement, ...]
    result: type[ResultT]
    evaluations: tuple[TaskEvaluation, ...] = ()

    @property
    def folder(self) -> RunFolder:
        """Run directory."""
        return RunFolder(Path(self.config.run.directory))

    def missing(self) -> list[Measurement | TaskEvaluation]:
        """Return the measurements and evaluations without a result file."""
        steps: list[Measurement | TaskEvaluation] = [*self.measurements, *self.evaluations]
        return [step for step in steps if not step.is_done()]

    def read_results(self) -> list[ResultT]:
        """Read the existing result files."""
        return [self.result.read(measurement.path) for measurement in self.measurements if measurement.is_done()]

    def read_summary(self) -> str:
        """Read the existing result files, and return them in one line."""
        summaries = [result.summary for result in self.read_results()]
        summaries += [evaluation.summary for evaluation in self.evaluations if evaluation.is_done()]
        return f"{self.name}: {'; '.join(summaries)}"

    def check(self, fingerprints: dict[str, str]) -> None:
        """Check that results and checkpoints in the run directory belong to this run.

        Args:
            fingerprints: Hashes of data and tokenizer.

        Raises:
            UserError: They have other settings or other data.
        """
        for measurement in self.measurements:
            if measurement.is_done():
                result = self.result.read(measurement.path)
                self._check_origin(measurement.path, result.config, result.fingerprints, fingerprints)
        for path in self.folder.list_checkpoints():
            try:
                reader = CheckpointReader(path)
            except (ValueError, OSError):
                # Training warns about a corrupted checkpoint and resumes from an older one.
                continue
            self._check_origin(path, reader.config, reader.state.fingerprints, fingerprints)

    def divergence(self) -> str | None:
        """Return a message about an earlier training with the same settings that diverged, or None."""
        return divergence(self.folder, self.config)

    def finish(self, children: Children, environments: SimpleQueue[Environment]) -> None:
        """Train and measure the model, skipping finished steps. A run that diverged is not trained again.

        Args:
            children: Runs the commands.
            environments: Free environments. The call waits for one and puts it back afterwards.

        Raises:
            RunsFailed: A command failed, or the run diverged earlier. The message quotes the error in the log.
        """
        if not self.missing():
            return
        environment = environments.get()
        try:
            self.folder.directory.mkdir(parents=True, exist_ok=True)
            if self.train is None:
                save_config(self.config, self.folder.config)
            else:
                self._train(self.train, children, environment)
            for step in self.missing():
                status = children.run(step.command(), environment, self.folder.log)
                self._check_success("measuring", status, step.is_done())
        finally:
            environments.put(environment)

    def _train(self, command: list[str], children: Children, environment: Environment) -> None:
        """Train the model, unless the last checkpoint is complete."""
        checkpoint = self.folder.checkpoint(self.config.training.steps)
        if _is_complete(checkpoint):
            return
        message = self.divergence()
        if message is not None:
            raise RunsFailed(f"{self.name}: {message}")
        remove_mark(self.folder)
        status = children.run(command, environment, self.folder.log)
        if status == ExitStatus.DIVERGED:
            message = mark_diverged(self.folder, self.config, last_error(self.folder.log))
            raise RunsFailed(f"{self.name}: {message}")
        self._check_success("training", status, _is_complete(checkpoint))

    def _check_success(self, activity: str, status: int, is_done: bool) -> None:
        """Raise RunsFailed if a command failed.

        Args:
            activity: Name of the activity.
            status: Exit status of the command.
            is_done: Whether the product of the command is complete. An earlier, corrupted one may exist.
        """
        if status == 0 and is_done:
            return
        log = self.folder.log
        raise RunsFailed(f"{self.name}: {activity} exited with status {status}; {log} says: {last_error(log)}")

    def _check_origin(self, origin: Path, theirs: Config, recorded: dict[str, str], fingerprints: dict[str, str]) -> None:
        """Raise UserError if a file comes from a run with other settings or other data."""
        changed = list(differences(theirs, self.config))
        check_same_settings(origin, changed)
        check_same_data(origin, recorded, fingerprints, self.config.data)
        for field in changed:
            if field.rule.is_compared:
                raise UserError(
                    f"{origin} was trained with {field.path} {field.theirs}, now it is {field.ours}: set it back, or choose "
                    f"another {flag('output')}"
                )


def _is_complete(checkpoint: Path) -> bool:
    """Whether a checkpoint exists with files of the recorded sizes."""
    try:
        CheckpointReader(checkpoint)
    except (ValueError, OSError):
        return False
    return True


def last_error(log: Path) -> str:
    """Return the last error line in a log, or the last line if there is none."""
    lines = read_regular(log).decode(errors="replace").splitlines()
    # Launchers log more lines after the error of a rank.
    errors = [line for line in lines if line.startswith("error")]
    if errors:
        return errors[-1]
    if lines:
        return lines[-1]
    return "nothing"
