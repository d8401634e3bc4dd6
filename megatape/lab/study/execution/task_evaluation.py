"""Evaluation of a trained model by `megatape evaluate`, as a step of its run."""

import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from megatape.errors import UserError
from megatape.lab.tasks.engine.recorded import RESULTS, read_results
from megatape.utils.text.units import format_number

# Hexadecimal digits of a hash in a folder name, enough to tell the evaluations of a study apart.
HASH_DIGITS = 8


@dataclass(frozen=True)
class TaskCommand:
    """A task with its options, as in `megatape evaluate TASK MODEL OPTIONS`.

    Attributes:
        task: Task name.
        options: Words of the command line.
    """

    task: str
    options: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Split a text such as "passkey --lengths 1024,2048" into words, as a shell does.

        Raises:
            UserError: A quotation does not end, or there is no word.
        """
        example = "give a task and its options, such as 'passkey --lengths 1024'"
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UserError(f"{error}: {example}") from None
        if not words:
            raise UserError(f"it names no task: {example}")
        return cls(words[0], tuple(words[1:]))

    @property
    def title(self) -> str:
        """The task and its options in one line."""
        return shlex.join([self.task, *self.options])

    @property
    def folder_name(self) -> str:
        """Name of a folder for results. Other options lead to another name."""
        digest = hashlib.sha256(self.title.encode()).hexdigest()
        return f"{self.task}-{digest[:HASH_DIGITS]}"


@dataclass(frozen=True)
class TaskEvaluation:
    """Evaluation of the last checkpoint of a run.

    Attributes:
        title: The task and its options.
        path: Results, which `megatape evaluate` writes last.
        words: Command that evaluates the checkpoint, and resumes an interrupted evaluation.
    """

    title: str
    path: Path
    words: tuple[str, ...]

    @classmethod
    def of(cls, task: TaskCommand, checkpoint: Path, output: Path, words: list[str]) -> Self:
        """Return the evaluation of a checkpoint.

        Args:
            task: Task with its options.
            checkpoint: Folder of the checkpoint.
            output: Folder for results, below which `megatape evaluate` makes TASK/MODEL.
            words: Command that evaluates the checkpoint.
        """
        return cls(task.title, output / task.task / checkpoint.name / RESULTS, tuple(words))

    def is_done(self) -> bool:
        """Whether the results exist."""
        return self.path.exists()

    def command(self) -> list[str]:
        """Return the command that evaluates the checkpoint."""
        return list(self.words)

    def read_columns(self) -> dict[str, float]:
        """Read the measures: name -> value.

        Raises:
            UserError: The file is corrupted.
        """
        try:
            results = read_results(self.path)
        except ValueError as error:
            raise UserError(f"{self.path} is corrupted ({error}): remove it and run the command again") from error
        return {measure.name: measure.value for measure in results.measures}

    @property
    def summary(self) -> str:
        """The measures in one line."""
        measures = ", ".join(f"{name} {format_number(value)}" for name, value in self.read_columns().items())
        return f"{self.title}: {measures}"
