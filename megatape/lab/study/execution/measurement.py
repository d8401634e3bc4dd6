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
from megatape.lab.study.results.result import Result
from megatape.utils.python_process import python_command

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Measurement:
    """A function that measures a trained model, and the file for its result.

    Attributes:
        path: Result file.
        function: Module-level function returning the result.
        arguments: Arguments for the function.
    """

    path: Path
    function: Callable[..., Result]
    arguments: tuple[JsonValue, ...]

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
        result: Result = measure(*values)
        result.write(Path(path))
    except UserError as error:
        LOG.error("error: %s", error)
        return error.status
    return 0
