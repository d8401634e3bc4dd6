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
from megatape.lab.study.execution.measurement import Measurement
from megatape.lab.study.execution.task_evaluation import TaskEvaluation
from megatape.lab.study.results.result import RunResult
from megatape.run_folder import RunFolder
from megatape.utils.files.files import read_regular

# Marks a run whose weights diverged. It is not repeated, because it would diverge again.
DIVERGED = "diverged.txt"


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

    def finish(self, children: Children, environments: SimpleQueue[Environment]) -> None:
        """Train and measure the model, skipping finished steps.

        Args:
            children: Runs the commands.
            environments: Free environments. The call waits for one and puts it back afterwards.

        Raises:
            RunsFailed: A command failed. The message quotes the error in the log.
        """
        if not self.missing():
            return
        environment = environments.get()
        try:
            self.folder.directory.mkdir(parents=True, exist_ok=True)
            checkpoint = self.folder.checkpoint(self.config.training.steps)
            if self.train is None:
                save_config(self.config, self.folder.config)
            elif not _is_complete(checkpoint):
                self._execute("training", children, self.train, environment, checkpoint)
            for step in self.missing():
                self._execute("measuring", children, step.command(), environment, step.path)
        finally:
            environments.put(environment)

    def _execute(
        self,
        activity: str,
        children: Children,
        command: list[str],
        environment: Environment,
        product: Path,
    ) -> None:
        """Run a command and check that it wrote `product`."""
        log = self.folder.log
        status = children.run(command, environment, log)
        if product.exists():
            return
        error = last_error(log)
        if status == ExitStatus.DIVERGED:
            (self.folder.directory / DIVERGED).write_text(f"{error}\n", encoding="utf-8")
        raise RunsFailed(f"{self.name}: {activity} exited with status {status}; {log} says: {error}")

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
