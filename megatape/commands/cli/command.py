"""A command, as its module defines it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from megatape.utils.options import CommandOptions


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        name: Words that call it, such as "benchmark gpu".
        options: Type of its options, from whose fields parser, help and documentation are made.
        run: Its function, called with the options. It prints its results, and returns an exit status or None for success.
        example: Command line that ends its help.
    """

    name: str
    options: type[CommandOptions]
    run: Callable[[Any], int | None]
    example: str


def load_command(name: str) -> Command:
    """Import the module of a command: megatape/commands/benchmark/gpu.py of "benchmark gpu".

    The module defines the class `Options` and the function `run(options)`. Slow imports, such as torch, belong inside `run`,
    because --help must not wait for them. The first text in backquotes of its docstring is the example.

    Args:
        name: Name in COMMANDS that is no group.
    """
    module = import_module(f"megatape.commands.{name.replace(' ', '.')}")
    found = re.search(r"`(.*?)`", module.__doc__ or "")
    example = f"megatape {name}"
    if found is not None:
        example = found[1]
    return Command(name, module.Options, module.run, example)
