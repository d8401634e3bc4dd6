"""Measuring a trained model in a new process, which calls a function and writes its result to a file.

The process calls `main` with FILE MODULE:FUNCTION ARGUMENT ...
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from pydantic import JsonValue

from megatape.errors import UserError
from megatape.lab.study.results.result import RunResult
from megatape.utils.processes.python_process import python_command

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Measurement:
    """A function that measures a trained model, and the file for its result.

    Attributes:
        path: Result file.
        function: Module-level function returning the result.
        arguments: Arguments for the function. The first one is the run directory if there is an `of_model`.
        of_model: Module-level function that measures a model in memory (one_process/training.py) instead. It gets the model
            in place of the run directory. None if measuring needs a checkpoint.
    """

    path: Path
    function: Callable[..., RunResult]
    arguments: tuple[JsonValue, ...]
    of_model: Callable[..., RunResult] | None = None

    def is_done(self) -> bool:
        """Whether the result file exists."""
        return self.path.exists()

    def command(self) -> list[str]:
        """Return the command that calls the function and writes the file."""
        target = f"{self.function.__module__}:{self.function.__name__}"
        arguments = [json.dumps(argument) for argument in self.arguments]
        return python_command(__name__, str(self.path), target, *arguments)


def main(words: list[str]) -> int:
    """Call a function, write its result to a file, and return the exit status.

    Args:
        words: Path of the result file, MODULE:FUNCTION, and the function's arguments as JSON.
    """
    path, target, *arguments = words
    module, _, name = target.partition(":")
    values = [json.loads(argument) for argument in arguments]
    measure = getattr(import_module(module), name)
    try:
        result: RunResult = measure(*values)
        result.write(Path(path))
    except UserError as error:
        LOG.error("error: %s", error)
        return error.status
    return 0
