"""Process that measures a trained model: calls a function and writes its result to a file.

The process calls `main` with FILE MODULE:FUNCTION ARGUMENT ...
"""

import json
import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from megatape.errors import UserError
from megatape.lab.study.execution.result import Result
from megatape.utils.python_process import python_command

LOG = logging.getLogger(__name__)


def measuring_command(path: Path, measure: Callable[..., Result], *values: Any) -> list[str]:
    """Return the command that calls a function and writes its result to a file.

    Args:
        path: File of the result.
        measure: Function of a module.
        values: Arguments of the function. They must be representable in JSON.
    """
    target = f"{measure.__module__}:{measure.__name__}"
    arguments = [json.dumps(value) for value in values]
    return python_command(__name__, str(path), target, *arguments)


def main(words: list[str]) -> int:
    """Call a function, write its result to a file, and return the exit status.

    Args:
        words: Path of the file, MODULE:FUNCTION, and the function's arguments as JSON.
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
