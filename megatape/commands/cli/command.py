"""Command objects, loaded from the modules of this package."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from megatape.utils.values.options import CommandOptions


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        name: Words that call the command, such as "benchmark gpu".
        options: Type of the options. Parser, help and documentation are built from its fields.
        run: Function that is called with the options. It prints its results, and returns an exit status or None for success.
        example: Command line shown at the end of the help.
    """

    name: str
    options: type[CommandOptions]
    run: Callable[[Any], int | None]
    example: str


def load_command(name: str) -> Command:
    """Import the module of a command: megatape/commands/benchmark/gpu.py for "benchmark gpu".

    The module defines the class `Options`, the function `run(options)` and the command line `EXAMPLE`. Slow imports, such as
    torch, belong inside `run`, because --help must not wait for them.

    Args:
        name: Name in COMMANDS, but not that of a group.
    """
    module_name = name.replace(" ", ".")
    module = import_module(f"megatape.commands.{module_name}")
    return Command(name, module.Options, module.run, module.EXAMPLE)
